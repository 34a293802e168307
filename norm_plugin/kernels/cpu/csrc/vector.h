// Vectors in the compiler's own extension: the same source for every instruction
// set. Included inside the namespace of a level.

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type __attribute__((vector_size(kBytes)));
  typedef int32_t bits __attribute__((vector_size(kBytes)));
};
template <>
struct Lanes<double> {
  typedef double type __attribute__((vector_size(kBytes)));
  typedef int64_t bits __attribute__((vector_size(kBytes)));
};
template <class T>
using Vec = typename Lanes<T>::type;
template <class T>
constexpr int64_t kWidth = kBytes / sizeof(T);

// A copy of known size, which compilers turn into one instruction for any alignment.
template <class V, class T>
inline V load(const T *p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class V, class T>
inline void store(T *p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Calls step(i, V()) for whole vectors, then step(i, T()) for each number that remains.
template <class T, class Step>
inline void sweep(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + kWidth<T> <= n; i += kWidth<T>) step(i, Vec<T>());
  for (; i < n; ++i) step(i, T());
}

// A sum over one sweep: lanes side by side, the rest by itself.
template <class T>
struct Sum {
  Vec<T> lanes = Vec<T>{};
  T rest = 0;
  inline void add(Vec<T> v) { lanes += v; }
  inline void add(T v) { rest += v; }
  inline T total() const {
    T half[kWidth<T>];
    store(half, lanes);
    for (int64_t width = kWidth<T> / 2; width > 0; width /= 2)
      for (int64_t i = 0; i < width; ++i) half[i] += half[i + width];
    return half[0] + rest;
  }
};

// The sum of value(i, V) over a sweep, in four chains: one alone would wait for each addition.
template <class T, class Value>
inline T sum_over(int64_t n, Value value) {
  constexpr int64_t w = kWidth<T>;
  Vec<T> chain[4] = {};
  T rest = 0;
  int64_t i = 0;
  for (; i + 4 * w <= n; i += 4 * w)
    for (int k = 0; k < 4; ++k) chain[k] += value(i + k * w, Vec<T>());
  for (; i + w <= n; i += w) chain[0] += value(i, Vec<T>());
  for (; i < n; ++i) rest += value(i, T());
  return Sum<T>{(chain[0] + chain[1]) + (chain[2] + chain[3]), rest}.total();
}

inline float root(float v) { return __builtin_sqrtf(v); }
inline double root(double v) { return __builtin_sqrt(v); }

typedef Vec<float> Floats;

// a < b ? a : b and a > b ? a : b, hence b where there is a NaN. GCC makes a comparison and a blend
// of such an expression, though all of x86 has one instruction for it.
#if defined(__x86_64__) && !defined(__clang__) && NORM_PLUGIN_BYTES == 64
inline Floats lesser(Floats a, Floats b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
inline Floats greater(Floats a, Floats b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
#elif defined(__x86_64__) && !defined(__clang__) && NORM_PLUGIN_BYTES == 32
inline Floats lesser(Floats a, Floats b) { return __builtin_ia32_minps256(a, b); }
inline Floats greater(Floats a, Floats b) { return __builtin_ia32_maxps256(a, b); }
#elif defined(__x86_64__) && !defined(__clang__)
inline Floats lesser(Floats a, Floats b) { return __builtin_ia32_minps(a, b); }
inline Floats greater(Floats a, Floats b) { return __builtin_ia32_maxps(a, b); }
#else
inline Floats lesser(Floats a, Floats b) { return a < b ? a : b; }
inline Floats greater(Floats a, Floats b) { return a > b ? a : b; }
#endif
