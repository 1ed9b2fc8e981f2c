/*
 * A program that leaves it to cuFile to initialize CUDA's driver, as NVIDIA's gdsio_verify does: whatever opens cuFile's driver, cuInit has been called then, also if the thread was cancelled
 * before: it ends after the call. A child forked from a process in which cuFile has done that leaves the driver alone.
 *
 * testinit FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"

static int fd;
static char buffer[4096];

static void opens(void) { OK(cuFileDriverOpen()); }
static void handle(void) { reg(fd); }
static void memory(void) { OK(cuFileBufRegister(buffer, sizeof buffer, 0)); }
static void batch(void)
{
	CUfileBatchHandle_t b;
	OK(cuFileBatchIOSetUp(&b, 1));
}
static void properties(void)
{
	CUfileDrvProps_t p;
	OK(cuFileDriverGetProperties(&p));
}

static int devices(void)
{
	int n = 0, (*count)(int *);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	WANT(lib && (*(void **)&count = dlsym(lib, "cuDeviceGetCount")));
	return count(&n) == 0 ? n : -1;
}

struct way { void (*call)(void); const char *name; int ended; };

static void *cancelled(void *arg)
{
	struct way *w = arg;
	pthread_cancel(pthread_self());
	w->call();
	w->ended = 1;
	pthread_testcancel();
	return NULL;
}

static void in_child(struct way *w)
{
	int status;
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		WANT(devices() == -1);
		pthread_t t;
		void *end;
		WANT(pthread_create(&t, NULL, cancelled, w) == 0 && pthread_join(t, &end) == 0 && end == PTHREAD_CANCELED);
		if (!w->ended || devices() != 1) {
			fprintf(stderr, "%s: %s\n", w->name, w->ended ? "the driver is not initialized" : "the call was cancelled");
			_exit(1);
		}
		unsigned (*calls)(const char *);
		WANT((*(void **)&calls = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_calls")));
		pid_t grandchild = fork();
		if (grandchild == 0) {
			calls(NULL);
			handle();
			_exit(calls("cuInit") != 0);
		}
		WANT(waitpid(grandchild, &status, 0) == grandchild && status == 0);
		_exit(0);
	}
	WANT(waitpid(child, &status, 0) == child && status == 0);
}

int main(int n, char **arg)
{
	WANT(n == 2);
	fd = open(arg[1], O_RDWR);
	struct way ways[] = {{opens, "cuFileDriverOpen", 0}, {handle, "cuFileHandleRegister", 0}, {memory, "cuFileBufRegister", 0}, {batch, "cuFileBatchIOSetUp", 0},
		{properties, "cuFileDriverGetProperties", 0}};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		in_child(&ways[i]);
	/* A program that has not loaded the driver gets none. */
	opens();
	handle();
	WANT(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	return 0;
}
