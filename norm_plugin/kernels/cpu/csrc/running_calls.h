// The moving of running statistics, of torch's tensors.
#pragma once
#include <cmath>

#include "tensors.h"

namespace {
// buffer <- (1 - weight) buffer + weight value, unless there is no position or value is not finite.
void move(const Tensor &buffer, const Tensor &value, double weight, const Tensor &count) {
  if (buffer.scalar_type() != value.scalar_type())
    return move(buffer, value.to(buffer.scalar_type()), weight, count);
  AT_DISPATCH_FLOATING_TYPES(buffer.scalar_type(), "move", [&] {
    scalar_t *to = pointer<scalar_t>(buffer, buffer, buffer.sizes(), "buffer");
    const scalar_t *from = pointer<scalar_t>(buffer, value, buffer.sizes(), "value");
    const scalar_t share = weight;
    scalar_t zero = count.item<double>() > 0 ? 0 : NAN;
    for (int64_t i = 0; i < buffer.numel(); ++i) zero += 0 * from[i];  // NaN for NaN and infinity
    if (zero != 0) return;
    // From the nearer end, as torch.lerp: a share of 1 leaves `from` itself
    for (int64_t i = 0; share < 0.5 && i < buffer.numel(); ++i) to[i] += share * (from[i] - to[i]);
    for (int64_t i = 0; share >= 0.5 && i < buffer.numel(); ++i)
      to[i] = from[i] - (1 - share) * (from[i] - to[i]);
  });
}

// nu <- nu (1 - step gamma) + step lambda, unless that is not finite. step: a number or a tensor.
void step_nu(const Tensor &nu, const Tensor &gamma, const Tensor &lambda, const py::object &step) {
  const double by = step.cast<double>();
  AT_DISPATCH_FLOATING_TYPES(nu.scalar_type(), "step_nu", [&] {
    const Tensor next = at::empty_like(nu);
    const Tensor own_gamma = gamma.to(nu.scalar_type()), own_lambda = lambda.to(nu.scalar_type());
    scalar_t *old = pointer<scalar_t>(nu, nu, nu.sizes(), "nu"), *to = next.data_ptr<scalar_t>();
    const scalar_t *of_nu = pointer<scalar_t>(nu, own_gamma, nu.sizes(), "gamma");
    const scalar_t *fresh = pointer<scalar_t>(nu, own_lambda, nu.sizes(), "lambda");
    scalar_t zero = 0;
    for (int64_t i = 0; i < nu.numel(); ++i) {
      to[i] = old[i] * (1 - scalar_t(by) * of_nu[i]) + scalar_t(by) * fresh[i];
      zero += 0 * to[i];
    }
    if (zero == 0) std::copy(to, to + nu.numel(), old);
  });
}
}  // namespace
