/* Whether the driver is open. It opens at its first use. NVIDIA's library initializes CUDA's driver then, and programs leave that to it (NVIDIA's gdsio_verify). */
#define _GNU_SOURCE
#include "core.h"

PROCESS_LOCK(lock);
static long count; /* protected by lock */

static void child(void)
{
	count = 0;
}

IN_CHILD(child);

/* Precedes the opening, without the lock: another thread may have the loader's, and wait for this one. */
static void before(void)
{
	if (!driver_is_open())
		lanefs_cuda_init();
}

void driver_use(void)
{
	UNCANCELLED;
	before();
	pthread_mutex_lock(&lock);
	if (!count)
		count = 1;
	pthread_mutex_unlock(&lock);
}

long driver_count(void)
{
	pthread_mutex_lock(&lock);
	long n = count;
	pthread_mutex_unlock(&lock);
	return n;
}

int driver_is_open(void) { return driver_count() > 0; }

status driver_open(void)
{
	UNCANCELLED;
	before();
	pthread_mutex_lock(&lock);
	count++;
	pthread_mutex_unlock(&lock);
	return ok();
}

status driver_close(void)
{
	UNCANCELLED;
	pthread_mutex_lock(&lock);
	long left = count > 0 ? --count : -1;
	pthread_mutex_unlock(&lock);
	if (left < 0)
		return bad(CU_FILE_DRIVER_NOT_INITIALIZED);
	if (left)
		return ok();
	/* What the program has left goes with it. Calls that are under way end first. */
	object_remove_all();
	buffer_forget_all();
	stream_forget_all();
	mount_forget_all();
	if (next_loaded()) {
		status (*f)(void) = (status (*)(void))next_function("DriverClose_v2");
		if (!f)
			f = (status (*)(void))next_function("DriverClose");
		if (f)
			f();
	}
	return ok();
}
