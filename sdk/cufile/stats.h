/* What cuFile's interface has of statistics, and hipFile's has not. */
#ifndef LANEFS_CUFILE_STATS_H
#define LANEFS_CUFILE_STATS_H

#include "core.h"

HIDDEN status stats_set_level(int want);
HIDDEN int stats_level(void);
HIDDEN status stats_switch(int want);
HIDDEN status stats_reset(void);
HIDDEN status stats_get(int want, void *out, size_t n); /* n: the size of that level */

#endif
