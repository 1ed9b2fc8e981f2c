/* Statistics of the interface, which the program switches on. Those of what this library does not have stay 0. */
#define _GNU_SOURCE
#include "core.h"
#include "stats.h"

#include <string.h>

enum { GPUS = 16, BUCKETS = 32 };

PROCESS_LOCK(lock);
static CUfileStatsLevel3_t all; /* these are protected by lock */
static int level, on;
static uint64_t since, elapsed; /* µs of collection */


static int collecting(void) { return __atomic_load_n(&on, __ATOMIC_RELAXED); }

static void tally(CUfileOpCounter_t *c, int failed)
{
	if (failed)
		c->err++;
	else
		c->ok++;
}

static int bucket(size_t n)
{
	int i = 0;
	for (size_t kib = n >> 10; kib && i < BUCKETS - 1; kib >>= 1)
		i++;
	return i;
}

void stats_event(enum event e, int failed, uint64_t n)
{
	if (!collecting())
		return;
	CUfileStatsLevel1_t *b = &all.detailed.basic;
	CUfileOpCounter_t *const counter[] = {&b->hdl_register_ops, &b->hdl_deregister_ops, &b->buf_register_ops, &b->buf_deregister_ops, &b->batch_setup_ops,
		&b->batch_submit_ops, &b->batch_cancel_ops, &b->batch_destroy_ops};
	pthread_mutex_lock(&lock);
	tally(counter[e], failed);
	CUfilePerGpuStats_t *g = &all.per_gpu_stats[0];
	if (e == DID_BUFFER) {
		g->n_mmap++;
		*(failed ? &g->n_mmap_err : &g->n_mmap_ok) += 1;
		g->reg_bytes += failed ? 0 : n;
	} else if (e == DID_BUFFER_END && !failed) {
		g->n_mmap_free++;
	} else if (e == DID_BATCH_SUBMIT && !failed) {
		b->batch_enqueued_ops.ok += n;
		b->batch_total_submit_ops.ok++;
	}
	pthread_mutex_unlock(&lock);
}

void stats_move(const struct move *m, ssize_t result, uint64_t us)
{
	if (!collecting())
		return;
	CUfileStatsLevel1_t *b = &all.detailed.basic;
	int gpu = m->target.gpu && m->target.gpu->ordinal < GPUS ? m->target.gpu->ordinal : 0;
	CUfilePerGpuStats_t *g = &all.per_gpu_stats[gpu];
	uint64_t n = result > 0 ? (uint64_t)result : 0, odd = ((uint64_t)m->offset | m->n) % 4096 != 0;
	pthread_mutex_lock(&lock);
	tally(m->read ? &b->read_ops : &b->write_ops, result < 0);
	*(m->read ? &b->read_bytes : &b->write_bytes) += n;
	*(m->read ? &b->read_lat_sum_us : &b->write_lat_sum_us) += us;
	if (result >= 0)
		(m->read ? all.detailed.read_size_kb_hist : all.detailed.write_size_kb_hist)[bucket(m->n)]++;
	if ((uint32_t)gpu >= all.num_gpus)
		all.num_gpus = (uint32_t)gpu + 1;
	*(m->read ? &g->read_bytes : &g->writes_bytes) += n;
	*(m->read ? &g->read_duration_us : &g->write_duration_us) += us;
	*(m->read ? &g->n_total_reads : &g->n_total_writes) += 1;
	*(m->read ? &g->n_unaligned_reads : &g->n_unaligned_writes) += odd;
	if (m->road == ROAD_PLAIN)
		*(m->read ? &g->n_posix_reads : &g->n_posix_writes) += 1;
	if (result < 0)
		*(m->read ? &g->n_reads_err : &g->n_writes_err) += 1;
	pthread_mutex_unlock(&lock);
}

void stats_together(void)
{
	if (!collecting())
		return;
	pthread_mutex_lock(&lock);
	all.detailed.basic.batch_nvfs_submit_ops.ok++;
	pthread_mutex_unlock(&lock);
}

void stats_batch(const struct move *m, ssize_t result, uint64_t us)
{
	if (!collecting())
		return;
	CUfileStatsLevel1_t *b = &all.detailed.basic;
	uint64_t n = result > 0 ? (uint64_t)result : 0;
	int read = m->read;
	pthread_mutex_lock(&lock);
	tally(&b->batch_processed_ops, result < 0);
	if (m->road == ROAD_PLAIN)
		tally(&b->batch_posix_processed_ops, result < 0);
	tally(&b->batch_complete_ops, result < 0);
	*(read ? &b->batch_read_bytes : &b->batch_write_bytes) += n;
	*(read ? &b->last_batch_read_bytes : &b->last_batch_write_bytes) = n;
	b->batch_completion_lat_sum_us += us;
	pthread_mutex_unlock(&lock);
}

status stats_set_level(int want)
{
	if (want < 0 || want > 3)
		return bad(CU_FILE_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	level = want;
	if (!want)
		on = 0;
	pthread_mutex_unlock(&lock);
	return ok();
}

int stats_level(void)
{
	pthread_mutex_lock(&lock);
	int l = level;
	pthread_mutex_unlock(&lock);
	return l;
}

status stats_switch(int want)
{
	status s = ok();
	if (!driver_is_open())
		return bad(CU_FILE_DRIVER_NOT_INITIALIZED);
	pthread_mutex_lock(&lock);
	if (want && !level)
		s = bad(CU_FILE_INVALID_VALUE);
	else if (want && !on)
		since = now_us();
	else if (!want && on)
		elapsed += now_us() - since;
	if (!s.err)
		on = want;
	pthread_mutex_unlock(&lock);
	return s;
}

status stats_reset(void)
{
	if (!driver_is_open())
		return bad(CU_FILE_DRIVER_NOT_INITIALIZED);
	pthread_mutex_lock(&lock);
	memset(&all, 0, sizeof all);
	elapsed = 0;
	since = now_us();
	pthread_mutex_unlock(&lock);
	return ok();
}

static uint64_t per(uint64_t a, uint64_t b) { return b ? a / b : 0; }

/* What follows from the sums. */
static void derive(CUfileStatsLevel3_t *s, uint64_t us)
{
	CUfileStatsLevel1_t *b = &s->detailed.basic;
	b->read_bw_bytes_per_sec = per(b->read_bytes * 1000000, us);
	b->write_bw_bytes_per_sec = per(b->write_bytes * 1000000, us);
	b->read_lat_avg_us = per(b->read_lat_sum_us, b->read_ops.ok + b->read_ops.err);
	b->write_lat_avg_us = per(b->write_lat_sum_us, b->write_ops.ok + b->write_ops.err);
	b->read_ops_per_sec = per(b->read_ops.ok * 1000000, us);
	b->write_ops_per_sec = per(b->write_ops.ok * 1000000, us);
	b->batch_read_bw_bytes = per(b->batch_read_bytes * 1000000, us);
	b->batch_write_bw_bytes = per(b->batch_write_bytes * 1000000, us);
	b->batch_completion_lat_avg_us = per(b->batch_completion_lat_sum_us, b->batch_complete_ops.ok + b->batch_complete_ops.err);
	b->batch_submit_ops_per_sec = per(b->batch_submit_ops.ok * 1000000, us);
	b->batch_complete_ops_per_sec = per(b->batch_complete_ops.ok * 1000000, us);
	for (uint32_t i = 0; i < s->num_gpus; i++) {
		s->per_gpu_stats[i].read_bw_bytes_per_sec = per(s->per_gpu_stats[i].read_bytes * 1000000, us);
		s->per_gpu_stats[i].write_bw_bytes_per_sec = per(s->per_gpu_stats[i].writes_bytes * 1000000, us);
	}
}

status stats_get(int want, void *out, size_t n)
{
	if (!out)
		return bad(CU_FILE_INVALID_VALUE);
	if (!driver_is_open())
		return bad(CU_FILE_DRIVER_NOT_INITIALIZED);
	pthread_mutex_lock(&lock);
	int has = level >= want;
	CUfileStatsLevel3_t copy = all;
	uint64_t us = elapsed + (on ? now_us() - since : 0);
	pthread_mutex_unlock(&lock);
	if (!has)
		return bad(CU_FILE_INVALID_VALUE);
	derive(&copy, us);
	memcpy(out, &copy, n); /* a level begins with the one below it */
	return ok();
}
