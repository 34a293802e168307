// Bounded functions of each number. Included inside the namespace of a level.
//
// The rational functions are minimax fits of this project in v^2, of a relative error under 3e-8 up
// to 9.02 for tanh and 3.93 for erf, from where both are 1 to the last bit. Beyond they rise above 1,
// at 10 and 4.2 by more than any rounding takes away, and 1 is where they are cut: so the value is
// exactly 1 in saturation, and never above, where 1 - tanh^2 would have the wrong sign. From there v^2
// stays what it is, and the function goes on as a line. float64 and the numbers that fill no vector
// go to the C library.

typedef Vec<double> Doubles;
typedef Lanes<float>::bits Bits;

// v, or the nearer of -bound and bound; NaN stays NaN.
inline Floats within(Floats v, float bound) {
  return greater(Floats{} - bound, lesser(Floats{} + bound, v));
}

// e^v = 2^n e^r with |r| <= ln(2)/2, for v <= 0; e^-87 below -87.
inline Floats exponential(Floats v) {
  v = greater(Floats{} - 87.0f, v);
  const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves no digit behind the point
  const Floats n = (v * 1.44269504f + to_integer) - to_integer;
  const Floats r = (v - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
  Floats p = 1.392618181e-3f * r + 8.36317763e-3f;
  p = p * r + 4.166655463e-2f;
  p = p * r + 1.6666577e-1f;
  p = p * r + 0.5f;
  const Floats e = (p * r) * r + r + 1.0f;
  return Floats(Bits(e) + (__builtin_convertvector(n, Bits) << 23));
}

template <class Function>
inline Doubles each(Doubles v, Function function) {
  for (int i = 0; i < kWidth<double>; ++i) v[i] = function(double(v[i]));
  return v;
}

struct Tanh {
  static inline Floats value(Floats v) {
    const Floats s = lesser(Floats{} + 10.0f * 10.0f, v * v);
    Floats p = 1.331755907e-8f * s + 2.058280307e-5f;
    p = p * s + 3.49401387e-3f;
    p = p * s + 1.337970829e-1f;
    p = p * s + 0.9999999799f;
    Floats q = 7.761518295e-7f * s + 3.28304401e-4f;
    q = q * s + 2.587101802e-2f;
    q = q * s + 4.671302395e-1f;
    q = q * s + 1.0f;
    return within(v * p / q, 1.0f);
  }
  static inline float value(float v) { return __builtin_tanhf(v); }
  static inline double value(double v) { return __builtin_tanh(v); }
  static inline Doubles value(Doubles v) { return each(v, [](double one) { return __builtin_tanh(one); }); }
  // The derivative at v, where the value is t.
  template <class V>
  static inline V slope(V, V t) {
    return 1 - t * t;
  }
};

struct Erf {
  static inline Floats value(Floats v) {
    const Floats s = lesser(Floats{} + 4.2f * 4.2f, v * v);
    Floats p = 2.041953174e-6f * s + 2.847062071e-4f;
    p = p * s + 3.776712405e-3f;
    p = p * s + 5.278116681e-2f;
    p = p * s + 1.907215426e-1f;
    p = p * s + 1.128379146f;
    Floats q = 3.799855355e-5f * s + 1.164442033e-3f;
    q = q * s + 1.499164441e-2f;
    q = q * s + 1.142309826e-1f;
    q = q * s + 5.023553012e-1f;
    q = q * s + 1.0f;
    return within(v * p / q, 1.0f);
  }
  static inline float value(float v) { return __builtin_erff(v); }
  static inline double value(double v) { return __builtin_erf(v); }
  static inline Doubles value(Doubles v) { return each(v, [](double one) { return __builtin_erf(one); }); }
  static inline Floats slope(Floats v, Floats) { return 1.12837917f * exponential(-v * v); }
  static inline float slope(float v, float) { return 1.12837917f * __builtin_expf(-v * v); }
  static inline double slope(double v, double) {
    return 1.1283791670955126 * __builtin_exp(-v * v);
  }
  static inline Doubles slope(Doubles v, Doubles) {
    return each(v, [](double one) { return slope(one, one); });
  }
};

template <class F, class T>
void point_forward_of(const PointArgs<T> a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T *x = a.x + row * a.channels;
    T *y = a.y + row * a.channels;
    sweep<T>(a.channels, [&](int64_t i, auto v) {
      using V = decltype(v);
      V f = F::value(load<V>(x + i) * a.slope + a.shift);
      store<V>(y + i, f * load<V>(a.weight + i) + load<V>(a.bias + i));
    });
  }
}

template <class F, class T>
void point_backward_of(const PointArgs<T> a, int64_t first, int64_t last, T *sums) {
  T *of_weight = sums, *of_bias = of_weight + a.channels;
  double slope_sum = 0, shift_sum = 0;  // over all channels: long sums, of which digits cancel
  for (int64_t i = 0; i < 4 * a.channels; ++i) sums[i] = 0;
  for (int64_t row = first; row < last; ++row) {
    const T *x = a.x + row * a.channels, *dy = a.dy + row * a.channels;
    T *dx = a.y + row * a.channels;
    Sum<T> of_slope, of_shift;
    sweep<T>(a.channels, [&](int64_t i, auto v) {
      using V = decltype(v);
      const V one = load<V>(x + i), g = load<V>(dy + i);
      const V u = one * a.slope + a.shift, f = F::value(u);
      const V du = g * F::slope(u, f) * load<V>(a.weight + i);
      store<V>(dx + i, du * a.slope);
      store<V>(of_weight + i, load<V>(of_weight + i) + g * f);
      store<V>(of_bias + i, load<V>(of_bias + i) + g);
      of_slope.add(V(du * one));
      of_shift.add(du);
    });
    slope_sum += of_slope.total();
    shift_sum += of_shift.total();
  }
  sums[2 * a.channels] = slope_sum;
  sums[3 * a.channels] = shift_sum;
}

template <class T>
inline int64_t end_of(const PointArgs<T> &a, int64_t block) {
  const int64_t last = (block + 1) * kBlockRows;
  return last < a.rows ? last : a.rows;
}

template <class T>
void point_forward(const PointArgs<T> &a, int64_t block) {
  const int64_t first = block * kBlockRows, last = end_of(a, block);
  a.erf ? point_forward_of<Erf>(a, first, last) : point_forward_of<Tanh>(a, first, last);
}

template <class T>
void point_backward(const PointArgs<T> &a, int64_t block) {
  const int64_t first = block * kBlockRows, last = end_of(a, block);
  T *sums = a.sums + block * 4 * a.channels;
  a.erf ? point_backward_of<Erf>(a, first, last, sums)
        : point_backward_of<Tanh>(a, first, last, sums);
}
