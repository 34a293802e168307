// norm_plugin.kernels.cpu._native: the passes of kernels/passes.py over torch's tensors, on the CPU.
//
// Reading torch's headers takes most of the build time. So the calls are included as text and compiled
// together, and only the headers of the operators that they call are read, not torch/extension.h.
#define AT_PER_OPERATOR_HEADERS
#include "batch_statistics.inc"
#include "families.inc"
#include "fused_norm.inc"
#include "replay.inc"

namespace {
// Half precision, which a CPU computes in float32 anyway, is converted before it gets here.
bool takes(const Tensor &x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
}
NORM_PLUGIN_CALL(takes)
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  for (const auto bind : bindings()) bind(module);
  module.attr("sources") = C10_STRINGIZE(NORM_PLUGIN_SOURCES);  // see kernels/cpu/sources.py
}
