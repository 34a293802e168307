// Norms by a batch's own statistics in one call, forward and backward: what batch_norm.py and
// power_norm_v.py do pass by pass where workers are synchronised. It is a dozen operations on C
// numbers, each of which would cost more than its arithmetic.
#pragma once
#include <cmath>

#include "column_calls.h"

namespace {
Tensor count_of(const Tensor &x, const MaybeTensor &valid) {
  const bool *real = valid_rows(x, valid);
  const int64_t count = real ? std::count(real, real + x.size(0), true) : x.size(0);
  return at::full({}, double(count), x.options());
}

// y, mean (without centring empty), variance or mean square, 1 / its root, n and rate.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, MaybeTensor> batch_forward(
    const Tensor &x, const MaybeTensor &valid, int64_t groups, double eps, bool centre,
    const Tensor &weight, const Tensor &bias) {
  auto [mean, variance, rate] = column_moments(x, valid, groups, eps, centre);
  const Tensor count = count_of(x, valid);
  Tensor inverse = at::empty_like(variance), gain = at::empty_like(variance);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "batch_forward", [&] {
    const scalar_t n = std::max(count.item<double>(), 1.0);
    const scalar_t *gamma = pointer<scalar_t>(x, weight, {x.size(1)}, "weight");
    scalar_t *mu = mean.data_ptr<scalar_t>(), *var = variance.data_ptr<scalar_t>();
    scalar_t *one_over = inverse.data_ptr<scalar_t>(), *factor = gain.data_ptr<scalar_t>();
    for (int64_t c = 0; c < x.size(1); ++c) {
      mu[c] /= n, var[c] /= n;
      one_over[c] = 1 / std::sqrt(var[c] + scalar_t(eps));
      factor[c] = gamma[c] * one_over[c];
    }
  });
  const MaybeTensor shift = centre ? MaybeTensor(mean) : std::nullopt;
  Tensor y = std::get<0>(column_map_of(x, rate, valid, groups, eps, shift, gain, bias, bias, false));
  return {y, mean, variance, inverse, count, rate};
}

// dx, sum_V dy x_hat, sum_N dy and mean_V(g x_hat) for g = weight * dy. pull: the gradients of
// mean and variance from elsewhere, as c and b of du; both there or both absent.
std::tuple<Tensor, Tensor, Tensor, Tensor> batch_backward(
    const Tensor &dy, const Tensor &x, const MaybeTensor &rate, const MaybeTensor &valid,
    const MaybeTensor &mean, const Tensor &inverse, const Tensor &weight, const Tensor &count,
    const MaybeTensor &pull_constant, const MaybeTensor &pull_of_u) {
  const Tensor sums = column_products(dy, x, rate, valid, mean);
  Tensor with_x_hat = at::empty_like(inverse), lambda = at::empty_like(inverse);
  Tensor gain = at::empty_like(inverse), constant = at::empty_like(inverse);
  Tensor of_u = at::empty_like(inverse);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "batch_backward", [&] {
    const int64_t channels = x.size(1);
    const scalar_t n = std::max(count.item<double>(), 1.0);
    const scalar_t *real = sums.const_data_ptr<scalar_t>() + channels, *with_u = real + channels;
    const scalar_t *one_over = pointer<scalar_t>(x, inverse, {channels}, "inverse");
    const scalar_t *gamma = pointer<scalar_t>(x, weight, {channels}, "weight");
    const scalar_t *to_c = pointer<scalar_t>(x, pull_constant, {channels}, "pull_constant");
    const scalar_t *to_b = pointer<scalar_t>(x, pull_of_u, {channels}, "pull_of_u");
    for (int64_t i = 0; i < channels; ++i) {
      const scalar_t factor = gamma[i] * one_over[i], with_hat = with_u[i] * one_over[i];
      const scalar_t of_gx = gamma[i] * with_hat / n;
      with_x_hat.data_ptr<scalar_t>()[i] = with_hat;
      lambda.data_ptr<scalar_t>()[i] = of_gx;
      gain.data_ptr<scalar_t>()[i] = factor;
      constant.data_ptr<scalar_t>()[i] = (to_c ? to_c[i] : 0) - factor * real[i] / n;
      of_u.data_ptr<scalar_t>()[i] = (to_b ? to_b[i] : 0) - of_gx * one_over[i] * one_over[i];
    }
  });
  const MaybeTensor shifted = mean ? MaybeTensor(constant) : std::nullopt;
  Tensor dx = std::get<0>(column_gradient(dy, x, rate, valid, mean, gain, shifted, of_u, false));
  return {dx, with_x_hat, sums[0], lambda};
}
}  // namespace
