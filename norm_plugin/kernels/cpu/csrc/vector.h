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

inline float root(float v) { return __builtin_sqrtf(v); }
inline double root(double v) { return __builtin_sqrt(v); }
