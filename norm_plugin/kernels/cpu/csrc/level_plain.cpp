// What every machine has that the compiler builds for.
#include <cstdint>
#define NORM_PLUGIN_LEVEL plain
#define NORM_PLUGIN_BYTES 16
#include "level.inc"
