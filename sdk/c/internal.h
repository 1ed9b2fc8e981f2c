/* What the library's own files share. */
#ifndef LANEFS_INTERNAL_H
#define LANEFS_INTERNAL_H

#include "lanefs.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Notes why a call fails (NULL: as errno has it), sets errno, and gives -1. */
HIDDEN int lanefs_fail(int code, const char *text);

/* Waits for what the program has under way on the device of a buffer that is mapped there. */
HIDDEN int lanefs_gpu_wait(const struct lanefs_buffer *b);

/* Waits likewise, and unmaps what lanefs_gpu_map mapped. */
HIDDEN void lanefs_gpu_unmap(struct lanefs_buffer *b);

#endif
