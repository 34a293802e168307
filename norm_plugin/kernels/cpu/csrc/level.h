// One level of vector instructions: NORM_PLUGIN_LEVEL is its name, NORM_PLUGIN_BYTES the size of
// its registers. Included by level_*.cpp, with the compiler told of the instructions before.
namespace norm_plugin {
namespace NORM_PLUGIN_LEVEL {
namespace {
constexpr int64_t kBytes = NORM_PLUGIN_BYTES;

#include "vector.h"

#include "rows.h"
#include "columns.h"
#include "pointwise.h"

template <class T>
const Passes<T> kPasses = {row_forward<T>,    row_backward<T>, point_forward<T>,   point_backward<T>,
                           column_moments<T>, column_map<T>,   column_products<T>, column_gradient<T>};
}  // namespace

const Passes<float> &passes(float) { return kPasses<float>; }
const Passes<double> &passes(double) { return kPasses<double>; }
}  // namespace NORM_PLUGIN_LEVEL
}  // namespace norm_plugin
