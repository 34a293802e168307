// The passes of norms over positions, of torch's tensors.
#pragma once
#include "tensors.h"

namespace {
template <class T>
ColumnArgs<T> column_args(const Tensor &x, const MaybeTensor &rate, const MaybeTensor &valid) {
  ColumnArgs<T> a{};
  a.rows = x.size(0), a.channels = x.size(1);
  a.x = x.data_ptr<T>();
  a.valid = valid_rows(x, valid);
  if (rate) {
    a.groups = rate->dim() == 2 ? rate->size(1) : 0;
    check_groups(x, a.groups);
    a.rate = pointer<T>(x, rate, {a.rows, a.groups}, "rate");
  }
  return a;
}

MaybeTensor room_for_rates(const Tensor &x, int64_t groups) {
  if (groups == 0) return std::nullopt;
  check_groups(x, groups);
  return at::empty({x.size(0), groups}, x.options());
}

// sum u and sum (u - mean)^2 over all positions, (2, C), from what each block has, (blocks, 3, C):
// Chan, Golub and LeVeque 1983.
template <class T>
Tensor merge_moments(const Tensor &blocks) {
  const int64_t channels = blocks.size(2);
  Tensor all = at::zeros({2, channels}, blocks.options());
  T *sum = all.data_ptr<T>(), *squares = sum + channels;
  T positions = 0;
  for (int64_t block = 0; block < blocks.size(0); ++block) {
    const T *mean = blocks.const_data_ptr<T>() + block * 3 * channels;
    const T *around_mean = mean + channels, count = mean[2 * channels];
    if (count == 0) continue;
    const T weight = positions == 0 ? 0 : positions * count / (positions + count);
    const T share = positions == 0 ? 0 : 1 / positions;
    for (int64_t c = 0; c < channels; ++c) {
      const T distance = mean[c] - sum[c] * share;
      squares[c] += around_mean[c] + distance * distance * weight;
      sum[c] += mean[c] * count;
    }
    positions += count;
  }
  return all;
}

std::tuple<Tensor, Tensor, MaybeTensor> column_moments(const Tensor &x, const MaybeTensor &valid,
                                                       int64_t groups, double eps, bool centre) {
  check_input(x);
  MaybeTensor rate = room_for_rates(x, groups);
  Tensor sums = room(x, 3);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_moments", [&] {
    auto a = column_args<scalar_t>(x, rate, valid);
    a.eps = eps, a.centre = centre, a.find_rate = true;
    a.sums = sums.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().column_moments, a);
    sums = centre ? merge_moments<scalar_t>(sums) : total<scalar_t>(sums);
  });
  return {sums[0], sums[1], rate};
}

// with_sums: otherwise the sums are an empty tensor.
std::tuple<Tensor, MaybeTensor, Tensor> column_map_of(const Tensor &x, MaybeTensor rate,
                                                      const MaybeTensor &valid, int64_t groups,
                                                      double eps, const MaybeTensor &shift,
                                                      const Tensor &gain, const Tensor &offset,
                                                      const MaybeTensor &at_padding,
                                                      bool with_sums) {
  check_input(x);
  const bool find_rate = !rate;
  if (find_rate) rate = room_for_rates(x, groups);
  Tensor y = at::empty_like(x), sums = with_sums ? room(x, 2) : at::empty({0}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_map", [&] {
    auto a = column_args<scalar_t>(x, rate, valid);
    a.eps = eps, a.find_rate = find_rate;
    a.shift = pointer<scalar_t>(x, shift, {a.channels}, "shift");
    a.gain = pointer<scalar_t>(x, gain, {a.channels}, "gain");
    a.offset = pointer<scalar_t>(x, offset, {a.channels}, "offset");
    a.at_padding = pointer<scalar_t>(x, at_padding, {a.channels}, "at_padding");
    a.y = y.data_ptr<scalar_t>();
    a.sums = with_sums ? sums.data_ptr<scalar_t>() : nullptr;
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().column_map, a, true);
    if (with_sums) sums = total<scalar_t>(sums);
  });
  return {y, rate, sums};
}

std::tuple<Tensor, MaybeTensor, Tensor> column_map(const Tensor &x, MaybeTensor rate,
                                                   const MaybeTensor &valid, int64_t groups,
                                                   double eps, const MaybeTensor &shift,
                                                   const Tensor &gain, const Tensor &offset,
                                                   const MaybeTensor &at_padding) {
  return column_map_of(x, rate, valid, groups, eps, shift, gain, offset, at_padding, true);
}

// sum dy over padding and over V become sum over all and over V.
template <class T>
Tensor with_padding(const Tensor &sums) {
  T *every = sums.data_ptr<T>();
  const T *real = every + sums.size(1);
  for (int64_t c = 0; c < sums.size(1); ++c) every[c] += real[c];
  return sums;
}

Tensor column_products(const Tensor &dy, const Tensor &x, const MaybeTensor &rate,
                       const MaybeTensor &valid, const MaybeTensor &shift) {
  check_input(x);
  Tensor sums = room(x, 3);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_products", [&] {
    auto a = column_args<scalar_t>(x, rate, valid);
    a.dy = pointer<scalar_t>(x, dy, x.sizes(), "dy");
    a.shift = pointer<scalar_t>(x, shift, {a.channels}, "shift");
    a.sums = sums.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().column_products, a);
    sums = with_padding<scalar_t>(total<scalar_t>(sums));
  });
  return sums;
}

std::tuple<Tensor, Tensor> column_gradient(const Tensor &dy, const Tensor &x,
                                           const MaybeTensor &rate, const MaybeTensor &valid,
                                           const MaybeTensor &shift, const Tensor &of_dy,
                                           const MaybeTensor &constant, const Tensor &of_u,
                                           bool with_sums) {
  check_input(x);
  Tensor dx = at::empty_like(x);
  Tensor sums = with_sums ? room(x, 3) : at::empty({0}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_gradient", [&] {
    auto a = column_args<scalar_t>(x, rate, valid);
    a.dy = pointer<scalar_t>(x, dy, x.sizes(), "dy");
    a.shift = pointer<scalar_t>(x, shift, {a.channels}, "shift");
    a.of_dy = pointer<scalar_t>(x, of_dy, {a.channels}, "of_dy");
    a.constant = pointer<scalar_t>(x, constant, {a.channels}, "constant");
    a.of_u = pointer<scalar_t>(x, of_u, {a.channels}, "of_u");
    TORCH_CHECK_VALUE(!a.shift == !a.constant, "shift and constant come together");
    a.y = dx.data_ptr<scalar_t>();
    a.sums = with_sums ? sums.data_ptr<scalar_t>() : nullptr;
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().column_gradient, a, true);
    if (with_sums) sums = with_padding<scalar_t>(total<scalar_t>(sums));
  });
  return {dx, sums};
}
}  // namespace
