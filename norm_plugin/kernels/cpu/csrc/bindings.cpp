// norm_plugin.kernels.cpu._native: the passes of kernels/passes.py over torch's tensors, on the CPU.
//
// The calls are included as text and compiled here, all at once: to read torch's headers takes most
// of a build's time, and each file of its own would read them again.
#include <torch/extension.h>

#include "batch_calls.inc"
#include "column_calls.inc"
#include "dropout_calls.inc"
#include "pointwise_calls.inc"
#include "row_calls.inc"
#include "running_calls.inc"

namespace {
// Half precision, which a CPU computes in float32 anyway, comes here widened.
bool takes(const Tensor &x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
}
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("takes", &takes);
  module.def("move", &move);
  module.def("step_nu", &step_nu);
  module.def("batch_forward", &batch_forward);
  module.def("batch_backward", &batch_backward);
  module.def("machine_has", &machine_has);
  module.def("use_level", &use_level);
  module.def("row_forward", &row_forward);
  module.def("row_backward", &row_backward);
  module.def("pointwise_forward", &pointwise_forward);
  module.def("pointwise_backward", &pointwise_backward);
  module.def("column_moments", &column_moments);
  module.def("column_map", &column_map);
  module.def("column_products", &column_products);
  module.def("column_gradient", &column_gradient);
  module.def("dropout_sum", &dropout_sum);
}
