// Norms over the channels of one position. Included inside the namespace of a level.

// The statistics of one group of channels: mean and rate of RowRule.
template <class T>
inline void row_statistics(const RowArgs<T> &a, const T *x, int64_t n, T &mean, T &rate) {
  mean = 0;
  if (a.mean) mean = sum_over<T>(n, [&](int64_t i, auto v) { return load<decltype(v)>(x + i); }) / n;
  const T squares = sum_over<T>(n, [&](int64_t i, auto v) {
    auto c = load<decltype(v)>(x + i) - mean;
    return c * c;
  });
  if (a.released)
    rate = 1 / (root(squares / (n - 1)) + T(a.eps));
  else
    rate = 1 / root(squares / n + T(a.eps));
}

template <class T>
void row_forward(const RowArgs<T> &a, int64_t block) {
  const int64_t n = a.channels / a.groups;
  const int64_t first = block * kBlockRows * a.groups;
  int64_t last = first + kBlockRows * a.groups;
  if (last > a.rows * a.groups) last = a.rows * a.groups;
  const T scale = a.bend_scale, slope = a.bend_slope;
  for (int64_t j = first; j < last; ++j) {
    const T *x = a.x + j * n;
    T *y = a.y + j * n;
    T mean, rate;
    row_statistics(a, x, n, mean, rate);
    if (a.mean) a.mean[j] = mean;
    a.rate[j] = rate;
    if (a.weight) {
      const T *weight = a.weight + j % a.groups * n;
      const T *bias = a.bias ? a.bias + j % a.groups * n : nullptr;
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        V z = (load<V>(x + i) - mean) * rate * load<V>(weight + i);
        store<V>(y + i, bias ? z + load<V>(bias + i) : z);
      });
    } else if (a.bend) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        V z = (load<V>(x + i) - mean) * rate;
        store<V>(y + i, scale * (1 - slope * z) * z);
      });
    } else {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        store<V>(y + i, (load<V>(x + i) - mean) * rate);
      });
    }
  }
}

// The factor of z sum(g z) in dx.
template <class T>
inline T rate_factor(const RowArgs<T> &a, int64_t n, T rate) {
  if (!a.released) return rate / n;
  const T s = 1 / rate - T(a.eps);
  return s > 0 ? 1 / ((n - 1) * s) : T(0);
}

// dx of one group, for g given by a function of (i, z, V).
template <class T, class Gradient>
inline void row_gradient(const RowArgs<T> &a, int64_t j, int64_t n, Gradient gradient) {
  const T *x = a.x + j * n;
  T *dx = a.y + j * n;
  const T mean = a.mean ? a.mean[j] : T(0), rate = a.rate[j];
  Sum<T> of_g, of_gz;
  sweep<T>(n, [&](int64_t i, auto v) {
    using V = decltype(v);
    V z = (load<V>(x + i) - mean) * rate;
    V g = gradient(i, z, v);
    of_g.add(g);
    of_gz.add(V(g * z));
  });
  const T mean_g = a.mean && a.through_mean ? of_g.total() / n : T(0);
  const T factor = a.through_rate ? rate_factor(a, n, rate) * of_gz.total() : T(0);
  sweep<T>(n, [&](int64_t i, auto v) {
    using V = decltype(v);
    V z = (load<V>(x + i) - mean) * rate;
    store<V>(dx + i, (gradient.again(i, z, v) - mean_g) * rate - z * factor);
  });
}

// g = weight * dy; the first sweep of it also adds to the gradients of weight and bias.
template <bool with_bias, class T>
struct WeightedGradient {
  const T *dy, *weight;
  T *of_weight, *of_bias;
  template <class V>
  inline V operator()(int64_t i, V z, V) const {
    V g = load<V>(dy + i);
    store<V>(of_weight + i, load<V>(of_weight + i) + g * z);
    if constexpr (with_bias) store<V>(of_bias + i, load<V>(of_bias + i) + g);
    return g * load<V>(weight + i);
  }
  template <class V>
  inline V again(int64_t i, V, V) const {
    return load<V>(dy + i) * load<V>(weight + i);
  }
};

template <class T>
struct BentGradient {
  const T *dy;
  T scale, slope;
  template <class V>
  inline V operator()(int64_t i, V z, V) const {
    return load<V>(dy + i) * (scale * (1 - slope * z));
  }
  template <class V>
  inline V again(int64_t i, V z, V v) const {
    return (*this)(i, z, v);
  }
};

template <class T>
struct PlainGradient {
  const T *dy;
  template <class V>
  inline V operator()(int64_t i, V, V) const {
    return load<V>(dy + i);
  }
  template <class V>
  inline V again(int64_t i, V z, V v) const {
    return (*this)(i, z, v);
  }
};

template <class T>
void row_backward(const RowArgs<T> &a, int64_t block) {
  const int64_t n = a.channels / a.groups;
  const int64_t first = block * kBlockRows * a.groups;
  int64_t last = first + kBlockRows * a.groups;
  if (last > a.rows * a.groups) last = a.rows * a.groups;
  T *of_weight = a.sums ? a.sums + block * 2 * a.channels : nullptr;
  for (int64_t i = 0; a.sums && i < 2 * a.channels; ++i) of_weight[i] = 0;
  for (int64_t j = first; j < last; ++j) {
    const T *dy = a.dy + j * n;
    const int64_t offset = j % a.groups * n;
    T *to_weight = of_weight + offset, *to_bias = to_weight + a.channels;
    if (a.weight && a.mean)
      row_gradient(a, j, n, WeightedGradient<true, T>{dy, a.weight + offset, to_weight, to_bias});
    else if (a.weight)
      row_gradient(a, j, n, WeightedGradient<false, T>{dy, a.weight + offset, to_weight, to_bias});
    else if (a.bend)
      row_gradient(a, j, n, BentGradient<T>{dy, T(a.bend_scale), T(a.bend_slope)});
    else
      row_gradient(a, j, n, PlainGradient<T>{dy});
  }
}
