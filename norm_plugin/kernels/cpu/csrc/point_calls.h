// Bounded functions, of torch's tensors.
#pragma once
#include "tensors.h"

namespace {
template <class T>
PointArgs<T> point_args(const Tensor &x, const std::string &function, double slope, double shift,
                        const Tensor &weight) {
  TORCH_CHECK_VALUE(function == "tanh" || function == "erf", "no function ", function);
  PointArgs<T> a{};
  a.rows = x.size(0), a.channels = x.size(1);
  a.x = x.data_ptr<T>();
  a.weight = pointer<T>(x, weight, {a.channels}, "weight");
  a.slope = slope, a.shift = shift;
  a.erf = function == "erf";
  return a;
}

Tensor pointwise_forward(const Tensor &x, const std::string &function, const Tensor &slope,
                         const MaybeTensor &shift, const Tensor &weight, const Tensor &bias) {
  check_input(x);
  Tensor y = at::empty_like(x);
  const double by = shift ? shift->item<double>() : 0.0;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "pointwise_forward", [&] {
    auto a = point_args<scalar_t>(x, function, slope.item<double>(), by, weight);
    a.bias = pointer<scalar_t>(x, bias, {a.channels}, "bias");
    a.y = y.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().point_forward, a);
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> pointwise_backward(
    const Tensor &dy, const Tensor &x, const std::string &function, const Tensor &slope,
    const MaybeTensor &shift, const Tensor &weight) {
  check_input(x);
  Tensor dx = at::empty_like(x), sums = room(x, 4);
  const double by = shift ? shift->item<double>() : 0.0;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "pointwise_backward", [&] {
    auto a = point_args<scalar_t>(x, function, slope.item<double>(), by, weight);
    a.dy = pointer<scalar_t>(x, dy, x.sizes(), "dy");
    a.y = dx.data_ptr<scalar_t>(), a.sums = sums.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().point_backward, a);
    sums = total<scalar_t>(sums);
  });
  const Tensor scalars = sums.select(1, 0);
  return {dx, scalars.narrow(0, 2, 1), scalars.narrow(0, 3, 1), sums[0], sums[1]};
}
}  // namespace
