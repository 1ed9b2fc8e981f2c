/*
 * A program that leaves it to cuFile to initialize CUDA's driver, as NVIDIA's gdsio_verify does: whatever opens cuFile's driver, cuInit has been called then. A child forked from
 * a process in which cuFile has done that leaves the driver alone.
 *
 * testinit FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testcuda.h"

static const char *path;
static char buffer[4096];

static void opens(void) { OK(cuFileDriverOpen()); }
static void handle(void) { reg(open(path, O_RDWR)); }
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

static void in_child(void (*way)(void), const char *name)
{
	int status;
	pid_t child = fork();
	WANT(child >= 0);
	if (child == 0) {
		WANT(devices() == -1);
		way();
		if (devices() != 1) {
			fprintf(stderr, "%s: the driver is not initialized\n", name);
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
	path = arg[1];
	const struct { void (*way)(void); const char *name; } ways[] = {{opens, "cuFileDriverOpen"}, {handle, "cuFileHandleRegister"}, {memory, "cuFileBufRegister"}, {batch, "cuFileBatchIOSetUp"},
		{properties, "cuFileDriverGetProperties"}};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		in_child(ways[i].way, ways[i].name);
	/* A program that has not loaded the driver gets none. */
	opens();
	handle();
	WANT(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	return 0;
}
