/*
 * All kernels with lanes of one thread that looks after four slots, as an NVIDIA GPU has them: so that a CPU runs that
 * code too.
 */
#define LANEFS_SLOTS 4
#include "../engine.hip"
#include "load.hip"
