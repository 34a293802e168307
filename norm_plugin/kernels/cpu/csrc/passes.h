// The passes over memory of norm_plugin/kernels/passes.py, as one table of functions for each
// level of vector instructions. Nothing of torch is known here: a level's file must hold no
// inline function of a library header, or the linker could put its instructions everywhere.
#pragma once
#include <cstdint>

namespace norm_plugin {

// Rows that one call works on at most. Sums over rows are taken block by block and the blocks
// added in order, so that neither the number of threads nor their timing changes a bit.
constexpr int64_t kBlockRows = 128;

template <class T>
struct RowArgs {
  const T *x, *dy, *weight, *bias;  // weight, bias: null for none
  T *mean, *rstd;                   // (N, G); mean: null without centering
  T *y;                             // y or dx
  T *sums;                          // (blocks, 2, C): sum dy z, sum dy; null without a weight
  int64_t rows, channels, groups;
  double eps, phi_scale, phi_slope;
  bool released, through_mean, through_rstd, phi;
};

template <class T>
struct PointArgs {
  const T *x, *dy, *weight, *bias;
  T slope, shift;
  T *y;     // y or dx
  T *sums;  // (blocks, 4, C): of weight and bias; of slope and shift at channel 0
  int64_t rows, channels;
};

template <class T>
struct ColumnArgs {
  const T *x, *dy;
  const bool *valid;                                 // null: all rows
  T *rstd;                                           // (N, G); null without groups
  const T *shift, *gain, *offset;                    // shift: null for 0
  const T *at_padding;                               // null: padding is mapped too
  const T *dy_coef, *constant, *u_coef;                  // constant: null if shift is
  T *y;                                              // y or dx
  T *sums;                                           // (blocks, k, C), or null
  int64_t rows, channels, groups;
  double eps;
  bool center, compute_rstd;
};

template <class T>
struct DropoutArgs {
  const T *stream, *branch;  // stream: null for none
  T *y;
  int64_t numbers, quarter;  // quarter: a fourth of them, rounded up
  uint32_t key[2], threshold;
  T scale;
};

// Each function works on one block, rows [block * kBlockRows, ...), if nothing else is said.
template <class T>
struct PointPasses {
  void (*forward)(const PointArgs<T> &, int64_t block);
  void (*backward)(const PointArgs<T> &, int64_t block);
};

template <class T>
struct Passes {
  void (*row_forward)(const RowArgs<T> &, int64_t block);
  void (*row_backward)(const RowArgs<T> &, int64_t block);
  PointPasses<T> tanh, erf;
  void (*column_moments)(const ColumnArgs<T> &, int64_t block);
  void (*column_map)(const ColumnArgs<T> &, int64_t block);
  void (*column_products)(const ColumnArgs<T> &, int64_t block);
  void (*column_gradient)(const ColumnArgs<T> &, int64_t block);
  void (*dropout)(const DropoutArgs<T> &, int64_t begin, int64_t end);  // counters
};

// The table of a level, for the dtype of the argument.
namespace plain {
const Passes<float> &passes(float);
const Passes<double> &passes(double);
}  // namespace plain
namespace avx2 {
const Passes<float> &passes(float);
const Passes<double> &passes(double);
}  // namespace avx2
namespace avx512 {
const Passes<float> &passes(float);
const Passes<double> &passes(double);
}  // namespace avx512

}  // namespace norm_plugin
