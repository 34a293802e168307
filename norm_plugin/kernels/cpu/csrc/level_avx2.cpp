// Called only if the machine has these instructions.
#include <cstdint>

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#elif defined(__x86_64__)
#pragma GCC target("avx2,fma")
#endif
#define NORM_PLUGIN_LEVEL avx2
#define NORM_PLUGIN_BYTES 32
#include "level.inc"
#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
