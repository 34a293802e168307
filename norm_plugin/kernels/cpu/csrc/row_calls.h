// Norms over channels, of torch's tensors.
#pragma once
#include "tensors.h"

namespace {
template <class T>
RowArgs<T> row_args(const Tensor &x, const MaybeTensor &weight, const MaybeTensor &mean,
                    const Tensor &rate, const py::handle &rule) {
  RowArgs<T> a{};
  a.rows = x.size(0), a.channels = x.size(1);
  a.x = x.data_ptr<T>();
  a.weight = pointer<T>(x, weight, {a.channels}, "weight");
  a.groups = rate.size(1);
  a.mean = pointer<T>(x, mean, {a.rows, a.groups}, "mean");
  a.rate = pointer<T>(x, rate, {a.rows, a.groups}, "rate");
  a.eps = rule.attr("eps").cast<double>();
  a.released = rule.attr("released").cast<bool>();
  a.through_mean = rule.attr("through_mean").cast<bool>();
  a.through_rate = rule.attr("through_rate").cast<bool>();
  const py::object bend = rule.attr("bend");
  a.bend = !bend.is_none();
  if (a.bend) std::tie(a.bend_scale, a.bend_slope) = bend.cast<std::pair<double, double>>();
  return a;
}

std::tuple<Tensor, MaybeTensor, Tensor> row_forward(const Tensor &x, const MaybeTensor &weight,
                                                    const MaybeTensor &bias,
                                                    const py::object &rule) {
  check_input(x);
  const int64_t groups = rule.attr("groups").cast<int64_t>();
  check_groups(x, groups);
  Tensor y = at::empty_like(x), rate = at::empty({x.size(0), groups}, x.options());
  MaybeTensor mean;
  if (rule.attr("centre").cast<bool>()) mean = at::empty_like(rate);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_forward", [&] {
    auto a = row_args<scalar_t>(x, weight, mean, rate, rule);
    a.bias = pointer<scalar_t>(x, bias, {a.channels}, "bias");
    a.y = y.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().row_forward, a);
  });
  return {y, mean, rate};
}

std::tuple<Tensor, MaybeTensor, MaybeTensor> row_backward(const Tensor &dy, const Tensor &x,
                                                          const MaybeTensor &mean,
                                                          const Tensor &rate,
                                                          const MaybeTensor &weight,
                                                          const py::object &rule) {
  check_input(x);
  check_groups(x, rate.dim() == 2 ? rate.size(1) : 0);
  Tensor dx = at::empty_like(x), sums;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_backward", [&] {
    auto a = row_args<scalar_t>(x, weight, mean, rate, rule);
    a.dy = pointer<scalar_t>(x, dy, x.sizes(), "dy");
    a.y = dx.data_ptr<scalar_t>();
    if (weight) sums = room(x, 2), a.sums = sums.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().row_backward, a);
    if (weight) sums = total<scalar_t>(sums);
  });
  if (!weight) return {dx, std::nullopt, std::nullopt};
  return {dx, sums[0], mean ? MaybeTensor(sums[1]) : std::nullopt};
}
}  // namespace
