/* The next library: the vendor's own, which gets the files that are not on LaneFS. It is loaded when there is the first such file. */
#define _GNU_SOURCE
#include "core.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;

/* Any build of this library has it, under whatever path. */
extern const char lanefs_cufile_build[];
const char lanefs_cufile_build[] __attribute__((visibility("default"))) = "LaneFS";

static void *try(const char *path)
{
	/* The next library's calls of its own functions must not come back here: it looks them up in itself first. */
	void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	if (l && dlsym(l, "lanefs_cufile_build")) {
		dlclose(l);
		return NULL;
	}
	return l;
}

static void *in(const char *directory, size_t n)
{
	char path[4096];
	if (n == 0 || snprintf(path, sizeof path, "%.*s/%s", (int)n, directory, front.soname) >= (int)sizeof path)
		return NULL;
	return try(path);
}

/* In the directory of a library of the vendor that the program has loaded, as Python's wheels have them. */
static int beside(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	const char *slash = strrchr(info->dlpi_name, '/');
	char *directory = arg;
	if (!slash || strncmp(slash + 1, front.beside, strlen(front.beside)) || (size_t)(slash - info->dlpi_name) >= 4096)
		return 0;
	memcpy(directory, info->dlpi_name, (size_t)(slash - info->dlpi_name));
	directory[slash - info->dlpi_name] = 0;
	return 1;
}

static void load(void)
{
	const char *named = secure_getenv(front.env); /* not of whoever starts a set-user-ID program */
	if (named) { /* the empty string: none */
		if (*named && !(library = try(named))) {
			const char *why = dlerror();
			fprintf(stderr, "lanefs: %s=%s: %s\n", front.env, named, why ? why : "that is LaneFS's own, not the vendor's");
		}
		if (library)
			param_tell_next();
		return;
	}
	char directory[4096];
	if (dl_iterate_phdr(beside, directory))
		library = in(directory, strlen(directory));
	for (const char *p = getenv("LD_LIBRARY_PATH"); p && *p && !library;) {
		size_t n = strcspn(p, ":");
		library = in(p, n);
		p += n + (p[n] == ':');
	}
	for (const char *const *d = front.directories; *d && !library; d++)
		library = in(*d, strlen(*d));
	if (library)
		param_tell_next();
}

void *next_library(void)
{
	pthread_once(&once, load);
	return library;
}

int next_loaded(void) { return __atomic_load_n(&library, __ATOMIC_ACQUIRE) != NULL; }

void *next_function(const char *name)
{
	char full[64];
	if (!next_loaded())
		return NULL;
	snprintf(full, sizeof full, "%s%s", front.prefix, name);
	return dlsym(library, full);
}

status next_file(struct file *f, int type, int fd)
{
	if (!next_library())
		return ok(); /* by pread and pwrite */
	status (*reg)(void **, CUfileDescr_t *) = (status (*)(void **, CUfileDescr_t *))next_function("HandleRegister");
	if (!reg)
		return bad(CU_FILE_INTERNAL_ERROR);
	CUfileDescr_t d = {.type = (enum CUfileFileHandleType)type, .handle.fd = fd};
	return reg(&f->next, &d);
}

void next_file_end(struct file *f)
{
	void (*end)(void *) = (void (*)(void *))next_function("HandleDeregister");
	if (end)
		end(f->next);
}

ssize_t next_move(struct move *m)
{
	m->road = ROAD_NEXT;
	buffer_next(m->base);
	if (m->read) {
		ssize_t (*f)(void *, void *, size_t, off_t, off_t) = (ssize_t (*)(void *, void *, size_t, off_t, off_t))next_function("Read");
		return f ? f(m->file->next, (void *)(uintptr_t)m->base, m->n, m->offset, m->at) : -CU_FILE_INTERNAL_ERROR;
	}
	ssize_t (*f)(void *, const void *, size_t, off_t, off_t) = (ssize_t (*)(void *, const void *, size_t, off_t, off_t))next_function("Write");
	return f ? f(m->file->next, m->base, m->n, m->offset, m->at) : -CU_FILE_INTERNAL_ERROR;
}
