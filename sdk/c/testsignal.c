/*
 * Run by a Go test beside this: testsignal FILE, a file of a mount with device memory, whose byte i is i % 251. Calls from the handler of a signal that has interrupted a call. It prints
 * "read" and reads a line when the device holds back the read's request; it prints "handled", and "ok" when the read has ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lanefs.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s; errno %d)\n", __FILE__, __LINE__, #x, lanefs_error(), errno); exit(1); } } while (0)

enum { N = 1 << 20 };

static lanefs *s;
static lanefs_stage *st;
static uint32_t file;
static pthread_t reader;
static unsigned char memory[N];
static volatile sig_atomic_t ended;

/* The interrupted call is certain to be in the device's wait, where it has no lock of malloc's. */
static void handle(int sig)
{
	static char b[10];
	struct lanefs_moved m;
	(void)sig;
	for (int i = 0; i < 3; i++) {
		WANT(lanefs_read_into(st, file, b, 0, sizeof b, NULL) == -1 && errno == EDEADLK);
		WANT(lanefs_write_from(st, file, b, 0, sizeof b, NULL) == -1 && errno == EDEADLK);
	}
	WANT(lanefs_how_moved(s, &m) == 0); /* the session is free */
	ended = 1;
}

static void *interrupts(void *arg)
{
	char line[10];
	WANT(fgets(line, sizeof line, stdin) && pthread_kill(reader, SIGUSR1) == 0);
	while (!ended)
		usleep(1000);
	puts("handled");
	WANT(fflush(stdout) == 0);
	return arg;
}

int main(int argc, char **argv)
{
	struct sigaction a = {.sa_handler = handle};
	pthread_t t;
	alarm(300); /* nothing hangs */
	int fd = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
	WANT((s = lanefs_connect(fd)) && (st = lanefs_stage_new(s, 0)) && lanefs_open(s, fd, &file) == 0 && sigaction(SIGUSR1, &a, NULL) == 0);
	reader = pthread_self();
	WANT(pthread_create(&t, NULL, interrupts, NULL) == 0);
	puts("read");
	WANT(fflush(stdout) == 0 && lanefs_read_into(st, file, memory, 0, N, NULL) == N);
	for (int i = 0; i < N; i++)
		WANT(memory[i] == i % 251);
	WANT(ended && pthread_join(t, NULL) == 0);
	lanefs_stage_free(st);
	lanefs_close(s);
	puts("ok");
	return 0;
}
