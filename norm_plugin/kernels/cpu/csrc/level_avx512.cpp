// Called only if the machine has these instructions.
#include <cstdint>

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#elif defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif
#define NORM_PLUGIN_LEVEL avx512
#define NORM_PLUGIN_BYTES 64
#include "level.inc"
#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
