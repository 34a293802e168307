// A pass over memory of norm_plugin/kernels/passes.py, compiled once per level of vector
// instructions. A family's file (rows.inc, columns.inc, pointwise.inc) is compiled once
// per level, where NORM_PLUGIN_LEVEL is the level's name, and then defines the passes; and once with
// torch, where it defines their calls. A level includes nothing of torch: it must contain no inline
// function of a library header, or the linker could use its instructions everywhere.
#pragma once
#include <cstdint>

namespace norm_plugin {

// The largest number of rows per call. Sums over rows are computed per block and the blocks added in
// order, so that neither the number of threads nor their timing changes the result.
constexpr int64_t kBlockRows = 128;
}  // namespace norm_plugin

// NORM_PLUGIN_PASS(name, Args, int64_t): the function template void name(const Args<T> &, int64_t
// block) is a pass. By default it processes one block, rows [block * kBlockRows, ...). At a level this
// defines name_pass; with torch, name_pass<T>() is the pass of the chosen level.
#ifdef NORM_PLUGIN_LEVEL
#define NORM_PLUGIN_PASS(name, Args, ...)                                                      \
  namespace norm_plugin::NORM_PLUGIN_LEVEL {                                                   \
  void (*name##_pass(float))(const Args<float> &, __VA_ARGS__) { return name<float>; }         \
  void (*name##_pass(double))(const Args<double> &, __VA_ARGS__) { return name<double>; }      \
  }
#else
namespace norm_plugin {
enum class Level { plain, avx2, avx512 };
inline Level chosen_level = Level::plain;
}  // namespace norm_plugin

#define NORM_PLUGIN_PASS_AT(level, name, Args, ...)                \
  namespace norm_plugin::level {                                   \
  void (*name##_pass(float))(const Args<float> &, __VA_ARGS__);    \
  void (*name##_pass(double))(const Args<double> &, __VA_ARGS__);  \
  }
#define NORM_PLUGIN_PASS(name, ...)                     \
  NORM_PLUGIN_PASS_AT(plain, name, __VA_ARGS__)         \
  NORM_PLUGIN_PASS_AT(avx2, name, __VA_ARGS__)          \
  NORM_PLUGIN_PASS_AT(avx512, name, __VA_ARGS__)        \
  namespace norm_plugin {                               \
  template <class T>                                    \
  auto name##_pass() {                                  \
    switch (chosen_level) {                             \
      case Level::avx512: return avx512::name##_pass(T()); \
      case Level::avx2: return avx2::name##_pass(T());  \
      default: return plain::name##_pass(T());          \
    }                                                   \
  }                                                     \
  }
#endif
