/*
 * Run by a Go test beside this, under ThreadSanitizer: testasync FILE, a file of a mount with device memory, with memory of a GPU of the stand-in for
 * libcuda (lab/cuda). Batches on streams by two threads, beside batches that return when they are done: they are done, they fail in the caller's
 * thread, and in the stage's, when the daemon has gone, and in both. Prints "ok".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { STAGE = 1 << 20, BIG = 2 * STAGE, TIMES = 12, NON_BLOCKING = 1 };

static int (*current)(void *), (*mem_alloc)(void **, size_t), (*mem_free)(void *), (*create)(void **, unsigned), (*destroy)(void *), (*sync_stream)(void *);
static void (*fail)(const char *, int);
static void *context;
static lanefs_stage *stage;
static uint32_t file;
static int gone; /* written between two runs of the threads */

static void load(void)
{
	int (*init)(unsigned), (*retain)(void **, int);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib);
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&current = dlsym(lib, "cuCtxSetCurrent");
	*(void **)&mem_alloc = dlsym(lib, "cuMemAlloc_v2");
	*(void **)&mem_free = dlsym(lib, "cuMemFree_v2");
	*(void **)&create = dlsym(lib, "cuStreamCreate");
	*(void **)&destroy = dlsym(lib, "cuStreamDestroy_v2");
	*(void **)&sync_stream = dlsym(lib, "cuStreamSynchronize");
	*(void **)&fail = dlsym(lib, "fake_cuda_fail");
	WANT(init(0) == 0 && retain(&context, 0) == 0);
}

/* What a batch may end with that fails in either thread. */
static int bad(int64_t done) { return done == -EIO || done == -ENOMEM || (gone && done == -ECONNRESET); }

static void *batches(void *arg)
{
	void *memory, *stream;
	int64_t done[2], n;
	WANT(current(context) == 0 && mem_alloc(&memory, BIG) == 0 && create(&stream, NON_BLOCKING) == 0);
	for (int i = 0; i < TIMES; i++) {
		int broken = i % 4 == 3;
		for (int k = 0; k < 2; k++) { /* eight parts each: the stage's thread has the first while this one puts the last */
			int rc = lanefs_read_async(stage, file, memory, &(struct lanefs_piece){0, 0, BIG}, 1, stream, NULL, &done[k]);
			int why = errno;
			if (rc)
				done[k] = -why;
			if (broken && arg)
				fail(i % 8 == 3 ? "cuLaunchHostFunc" : "cuMemcpyAsync", 2);
		}
		WANT(sync_stream(stream) == 0);
		for (int k = 0; k < 2; k++)
			WANT((!gone && done[k] == BIG) || bad(done[k]));
		n = lanefs_read_into(stage, file, memory, 0, BIG, stream);
		WANT((!gone && n == BIG) || (n == -1 && (errno == EIO || errno == ENOMEM || (gone && errno == ECONNRESET))));
		WANT(sync_stream(stream) == 0);
	}
	WANT(destroy(stream) == 0 && mem_free(memory) == 0);
	return NULL;
}

static void both(void)
{
	pthread_t t[2];
	struct lanefs_rungs r;
	for (int i = 0; i < 2; i++)
		WANT(pthread_create(&t[i], NULL, batches, i ? &file : NULL) == 0);
	for (int i = 0; i < TIMES; i++) {
		lanefs_stage_rungs(stage, &r);
		usleep(1000);
	}
	for (int i = 0; i < 2; i++)
		WANT(pthread_join(t[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	WANT(fd >= 0);
	alarm(300);
	load();
	lanefs *s = lanefs_connect(fd);
	WANT(s && (stage = lanefs_stage_new(s, STAGE)) && lanefs_open(s, fd, &file) == 0);
	both();
	/* As if the daemon had died: the session has a socket. */
	int type, sockets = 0;
	for (int i = 3; i < 1000; i++)
		if (getsockopt(i, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type}) == 0)
			sockets += shutdown(i, SHUT_RDWR) == 0;
	WANT(sockets > 0);
	gone = 1;
	both();
	lanefs_stage_free(stage);
	lanefs_close(s);
	puts("ok");
	return 0;
}
