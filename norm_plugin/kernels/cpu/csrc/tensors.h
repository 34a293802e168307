// What every call needs: the level, tensors as checked pointers, blocks and their sums.
#pragma once
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pass.h"

namespace {
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using namespace norm_plugin;

// Each call registers its binding by NORM_PLUGIN_CALL after its definition.
using Bind = void (*)(py::module &);
std::vector<Bind> &bindings() {
  static std::vector<Bind> all;
  return all;
}
struct Binding {
  explicit Binding(Bind bind) { bindings().push_back(bind); }
};
#define NORM_PLUGIN_CALL(name) \
  const Binding bind_##name([](py::module &module) { module.def(#name, &name); });

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
NORM_PLUGIN_CALL(machine_has)

void use_level(const std::string &level) {
  TORCH_CHECK_VALUE(machine_has(level), "this machine has no level ", level);
  chosen_level = level == "avx512" ? Level::avx512 : level == "avx2" ? Level::avx2 : Level::plain;
}
NORM_PLUGIN_CALL(use_level)

// A tensor of Python; an undefined one for None.
Tensor tensor_of(const py::handle object) {
  return object.is_none() ? Tensor() : THPVariable_Unpack(object.ptr());
}

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
  TORCH_CHECK_VALUE(x.dim() > 0 && x.is_contiguous() && x.device().is_cpu() && x.size(-1) > 0,
                    "x must be (..., C), contiguous and on the CPU, not ", x.sizes());
}

int64_t rows_of(const Tensor &x) { return x.numel() / x.size(-1); }

void check_groups(const Tensor &x, int64_t groups) {
  TORCH_CHECK_VALUE(groups > 0 && x.size(-1) % groups == 0, "groups is ", groups,
                    "; it must be 1 or more and divide the ", x.size(-1), " channels");
}

const bool *valid_rows(const Tensor &x, const MaybeTensor &valid) {
  if (!valid) return nullptr;
  TORCH_CHECK_VALUE(valid->numel() == rows_of(x) && valid->is_contiguous() &&
                        valid->scalar_type() == at::kBool && valid->device().is_cpu(),
                    "valid must be bool, contiguous, on the CPU and ", rows_of(x), " long");
  return valid->data_ptr<bool>();
}

int64_t block_count(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// A second pass over the same tensors goes backwards: what the first one read last is in the cache.
template <class Args>
void each_block(void (*pass)(const Args &, int64_t), const Args &args, bool backwards = false) {
  // torch's own threshold for using a second thread
  const int64_t numbers = kBlockRows * args.channels;
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / numbers);
  at::parallel_for(0, block_count(args.rows), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pass(args, backwards ? begin + end - 1 - i : i);
  });
}

// Memory for the partial sums of `kinds` kinds over each block.
Tensor empty_partial_sums(const Tensor &x, int64_t kinds) {
  return at::empty({block_count(rows_of(x)), kinds, x.size(-1)}, x.options());
}

// Adds the blocks' sums in order: (kinds, C). They are few: a second thread would cost more.
template <class T>
Tensor add_partial_sums(const Tensor &sums) {
  Tensor all = at::zeros({sums.size(1), sums.size(2)}, sums.options());
  T *to = all.data_ptr<T>();
  const T *from = sums.const_data_ptr<T>();
  const int64_t numbers = all.numel();
  for (int64_t block = 0; block < sums.size(0); ++block)
    for (int64_t i = 0; i < numbers; ++i) to[i] += from[block * numbers + i];
  return all;
}
}  // namespace
