// For every machine that the compiler targets by default.
#include <cstdint>
#define NORM_PLUGIN_LEVEL plain
#define NORM_PLUGIN_BYTES 16
#include "level.inc"
