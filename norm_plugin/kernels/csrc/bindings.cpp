// norm_plugin.kernels._native: the passes of _ops.py over torch's tensors, on the CPU.
#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "passes.h"

namespace {
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using namespace norm_plugin;

enum class Level { plain, avx2, avx512 };
Level chosen_level = Level::plain;

template <class T>
const Passes<T> &passes() {
  switch (chosen_level) {
    case Level::avx512: return avx512::passes(T());
    case Level::avx2: return avx2::passes(T());
    default: return plain::passes(T());
  }
}

bool machine_has(const std::string &level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == "avx2") return avx2;
  if (level == "avx512")
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return level == "plain";
}

void use_level(const std::string &level) {
  TORCH_CHECK_VALUE(machine_has(level), "this machine has no level ", level);
  chosen_level = level == "avx512" ? Level::avx512 : level == "avx2" ? Level::avx2 : Level::plain;
}

// --- tensors to pointers ---------------------------------------------------------------------

void check(const Tensor &like, const Tensor &t, at::IntArrayRef shape, const char *name) {
  TORCH_CHECK_VALUE(t.sizes() == shape && t.is_contiguous() && t.device().is_cpu() &&
                        t.scalar_type() == like.scalar_type(),
                    name, " must be contiguous, on the CPU, of shape ", shape, " and dtype ",
                    like.scalar_type(), ", not of shape ", t.sizes(), " and dtype ", t.scalar_type());
}

template <class T>
T *pointer(const Tensor &like, const MaybeTensor &t, at::IntArrayRef shape, const char *name) {
  if (!t) return nullptr;
  check(like, *t, shape, name);
  return t->data_ptr<T>();
}

void check_input(const Tensor &x) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.is_contiguous() && x.device().is_cpu() && x.size(1) > 0,
                    "x must be N x C, contiguous and on the CPU, not ", x.sizes());
}

const bool *valid_rows(const Tensor &x, const MaybeTensor &valid) {
  if (!valid) return nullptr;
  TORCH_CHECK_VALUE(valid->numel() == x.size(0) && valid->is_contiguous() &&
                        valid->scalar_type() == at::kBool && valid->device().is_cpu(),
                    "valid must be bool, contiguous, on the CPU and ", x.size(0), " long");
  return valid->data_ptr<bool>();
}

// --- blocks and their sums -------------------------------------------------------------------

int64_t block_count(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// A second pass over the same tensors goes backwards: what the first one read last is in the cache.
template <class Args>
void each_block(void (*pass)(const Args &, int64_t), const Args &args, bool backwards = false) {
  // torch's own bound on what a second thread is worth
  const int64_t numbers = kBlockRows * args.channels;
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / numbers);
  at::parallel_for(0, block_count(args.rows), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pass(args, backwards ? begin + end - 1 - i : i);
  });
}

// Room for sums of `kinds` kinds over each block.
Tensor room(const Tensor &x, int64_t kinds) {
  return at::empty({block_count(x.size(0)), kinds, x.size(1)}, x.options());
}

// The blocks' sums added in order: (kinds, C). They are few: a second thread would cost more.
template <class T>
Tensor total(const Tensor &sums) {
  Tensor all = at::zeros({sums.size(1), sums.size(2)}, sums.options());
  T *to = all.data_ptr<T>();
  const T *from = sums.const_data_ptr<T>();
  const int64_t numbers = all.numel();
  for (int64_t block = 0; block < sums.size(0); ++block)
    for (int64_t i = 0; i < numbers; ++i) to[i] += from[block * numbers + i];
  return all;
}

// --- rows ------------------------------------------------------------------------------------

template <class T>
RowArgs<T> row_args(const Tensor &x, const MaybeTensor &weight, const MaybeTensor &mean,
                    const Tensor &rate, const py::handle &rule) {
  RowArgs<T> a{};
  a.rows = x.size(0), a.channels = x.size(1);
  a.x = x.data_ptr<T>();
  a.weight = pointer<T>(x, weight, {a.channels}, "weight");
  a.groups = rate.size(1);
  TORCH_CHECK_VALUE(a.channels % a.groups == 0, "groups must divide the channels");
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

// --- bounded functions -----------------------------------------------------------------------

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

// --- columns ---------------------------------------------------------------------------------

template <class T>
ColumnArgs<T> column_args(const Tensor &x, const MaybeTensor &rate, const MaybeTensor &valid) {
  ColumnArgs<T> a{};
  a.rows = x.size(0), a.channels = x.size(1);
  a.x = x.data_ptr<T>();
  a.valid = valid_rows(x, valid);
  if (rate) {
    a.groups = rate->size(1);
    TORCH_CHECK_VALUE(a.channels % a.groups == 0, "groups must divide the channels");
    a.rate = pointer<T>(x, rate, {a.rows, a.groups}, "rate");
  }
  return a;
}

MaybeTensor room_for_rates(const Tensor &x, int64_t groups) {
  if (groups == 0) return std::nullopt;
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

std::tuple<Tensor, MaybeTensor, Tensor> column_map(const Tensor &x, MaybeTensor rate,
                                                   const MaybeTensor &valid, int64_t groups,
                                                   double eps, const MaybeTensor &shift,
                                                   const Tensor &gain, const Tensor &offset,
                                                   const MaybeTensor &at_padding) {
  check_input(x);
  const bool find_rate = !rate;
  if (find_rate) rate = room_for_rates(x, groups);
  Tensor y = at::empty_like(x), sums = room(x, 2);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "column_map", [&] {
    auto a = column_args<scalar_t>(x, rate, valid);
    a.eps = eps, a.find_rate = find_rate;
    a.shift = pointer<scalar_t>(x, shift, {a.channels}, "shift");
    a.gain = pointer<scalar_t>(x, gain, {a.channels}, "gain");
    a.offset = pointer<scalar_t>(x, offset, {a.channels}, "offset");
    a.at_padding = pointer<scalar_t>(x, at_padding, {a.channels}, "at_padding");
    a.y = y.data_ptr<scalar_t>(), a.sums = sums.data_ptr<scalar_t>();
    py::gil_scoped_release without_python;
    each_block(passes<scalar_t>().column_map, a, true);
    sums = total<scalar_t>(sums);
  });
  return {y, rate, sums};
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

// --- a batch's own statistics, in one call ----------------------------------------------------
//
// What kernels/batch_norm.py and power_norm_v.py do pass by pass where workers are synchronised:
// a dozen operations on C numbers, each of which costs more than its arithmetic.

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
  Tensor y = std::get<0>(column_map(x, rate, valid, groups, eps, shift, gain, bias, bias));
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

// --- running statistics -----------------------------------------------------------------------

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
    for (int64_t i = 0; zero == 0 && i < buffer.numel(); ++i) to[i] += share * (from[i] - to[i]);
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
}
