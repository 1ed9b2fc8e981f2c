/* Parameters. Those of cuFile's own workings are kept and given back, and told to the next library; this one needs none of them. */
#define _GNU_SOURCE
#include "core.h"

#include <stdio.h>
#include <string.h>

PROCESS_LOCK(lock);

struct size { size_t value, least, most; int set; };
static struct size sizes[SIZES] = { /* these are protected by lock; where NVIDIA's library takes any number, so does this: gdsio_verify asks for the largest */
	[CUFILE_PARAM_PROFILE_STATS] = {0, 0, 3, 0},
	[CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH] = {128, 1, 1024, 0},
	[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS] = {4, 0, 1024, 0},
	[CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB] = {8192, 4, 1 << 30, 0},
	[CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM] = {4, 0, 1024, 0},
	[CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB] = {16384, 4, 1 << 30, 0},
	[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB] = {131072, 0, SIZE_MAX, 0},
	[CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB] = {1024, 4, 1 << 30, 0},
	[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB] = {33554432, 0, SIZE_MAX, 0},
	[CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE] = {128, 1, 4096, 0},
	[CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB] = {4, 4, SIZE_MAX, 0},
	[CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS] = {5, 1, 1 << 30, 0},
};
struct flag { bool value; int set; };
static struct flag bools[BOOLS] = {
	[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE] = {true, 0},
	[CUFILE_PARAM_EXECUTION_PARALLEL_IO] = {true, 0},
	[CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY] = {true, 0},
};
struct text { char value[STRING]; int set; };
static struct text strings[STRINGS] = {[CUFILE_PARAM_LOGGING_LEVEL] = {"ERROR", 0}};
static size_t slab_sizes[SLABS] = {4, 1024, 16384}, slab_counts[SLABS] = {128, 64, 64};
static int slabs = 3;


#define LOCKED(statement) do { pthread_mutex_lock(&lock); statement; pthread_mutex_unlock(&lock); } while (0)

status param_get_size(int which, size_t *value)
{
	if (!value || which < 0 || which >= SIZES)
		return bad(CU_FILE_INVALID_VALUE);
	LOCKED(*value = sizes[which].value);
	return ok();
}

size_t param_size(int which)
{
	size_t n = 0;
	param_get_size(which, &n);
	return n;
}

/* late: by a function that is for when the driver is open. */
status param_set_size(int which, size_t value, int late)
{
	if (which < 0 || which >= SIZES)
		return bad(CU_FILE_INVALID_VALUE);
	if (!late && driver_is_open())
		return bad(CU_FILE_DRIVER_ALREADY_OPEN);
	if (value < sizes[which].least || value > sizes[which].most)
		return bad(late ? CU_FILE_DRIVER_UNSUPPORTED_LIMIT : CU_FILE_INVALID_VALUE);
	LOCKED((sizes[which].value = value, sizes[which].set = 1));
	return ok();
}

status param_range(int which, size_t *least, size_t *most)
{
	if (!least || !most || which < 0 || which >= SIZES)
		return bad(CU_FILE_INVALID_VALUE);
	*least = sizes[which].least;
	*most = sizes[which].most;
	return ok();
}

status param_get_bool(int which, bool *value)
{
	if (!value || which < 0 || which >= BOOLS || which == CUFILE_PARAM_PROFILE_NVTX)
		return bad(CU_FILE_INVALID_VALUE);
	LOCKED(*value = bools[which].value);
	return ok();
}

bool param_bool(int which)
{
	bool b = false;
	param_get_bool(which, &b);
	return b;
}

status param_set_bool(int which, bool value, int late)
{
	if (which < 0 || which >= BOOLS || which == CUFILE_PARAM_PROFILE_NVTX)
		return bad(CU_FILE_INVALID_VALUE);
	if (!late && driver_is_open())
		return bad(CU_FILE_DRIVER_ALREADY_OPEN);
	LOCKED((bools[which].value = value, bools[which].set = 1));
	return ok();
}

status param_get_string(int which, char *value, int n)
{
	status s = ok();
	if (!value || n <= 0 || which < 0 || which >= STRINGS)
		return bad(CU_FILE_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	if (strlen(strings[which].value) >= (size_t)n)
		s = bad(CU_FILE_INVALID_VALUE);
	else
		strcpy(value, strings[which].value);
	pthread_mutex_unlock(&lock);
	return s;
}

status param_set_string(int which, const char *value)
{
	if (!value || which < 0 || which >= STRINGS || strlen(value) >= STRING)
		return bad(CU_FILE_INVALID_VALUE);
	if (driver_is_open())
		return bad(CU_FILE_DRIVER_ALREADY_OPEN);
	LOCKED((strcpy(strings[which].value, value), strings[which].set = 1));
	return ok();
}

status param_set_slabs(const size_t *s, const size_t *c, int n)
{
	if (!s || !c || n <= 0 || n > SLABS)
		return bad(CU_FILE_INVALID_VALUE);
	if (driver_is_open())
		return bad(CU_FILE_DRIVER_ALREADY_OPEN);
	pthread_mutex_lock(&lock);
	memcpy(slab_sizes, s, (size_t)n * sizeof *s);
	memcpy(slab_counts, c, (size_t)n * sizeof *c);
	slabs = n;
	pthread_mutex_unlock(&lock);
	return ok();
}

status param_get_slabs(size_t *s, size_t *c, int n)
{
	status r = ok();
	pthread_mutex_lock(&lock);
	if (!s || !c || n != slabs) {
		r = bad(CU_FILE_INVALID_VALUE);
	} else {
		memcpy(s, slab_sizes, (size_t)n * sizeof *s);
		memcpy(c, slab_counts, (size_t)n * sizeof *c);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

void param_tell_next(void)
{
	status (*size)(int, size_t) = (status (*)(int, size_t))next_function("SetParameterSizeT");
	status (*flag)(int, bool) = (status (*)(int, bool))next_function("SetParameterBool");
	status (*text)(int, const char *) = (status (*)(int, const char *))next_function("SetParameterString");
	for (int i = 0; i < SIZES && size; i++)
		if (sizes[i].set)
			size(i, sizes[i].value);
	for (int i = 0; i < BOOLS && flag; i++)
		if (bools[i].set)
			flag(i, bools[i].value);
	for (int i = 0; i < STRINGS && text; i++)
		if (strings[i].set)
			text(i, strings[i].value);
}
