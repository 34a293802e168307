// What every machine has that the compiler builds for.
#include "passes.h"
#define NORM_PLUGIN_LEVEL plain
#define NORM_PLUGIN_BYTES 16
#include "level.inc"
