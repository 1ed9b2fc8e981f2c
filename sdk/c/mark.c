/* Places on streams. */
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { NO_TIME = 2 }; /* CU_EVENT_DISABLE_TIMING, hipEventDisableTiming */
enum { NOT_READY = 600 };
enum { LEAST_PAUSE = 10000, MOST_PAUSE = 1000000, ASK = 100000000 }; /* ns */

struct lanefs_mark {
	struct gpu *gpu; /* NULL: it is reached */
	void *context;    /* the program's own, that the stream is of; NULL: none */
	void *stream, *event;
	struct asking asking;
	pid_t pid;
};

/* Whether nothing is on the stream any more, since the device was reset. */
static int over(lanefs_mark *m) { return m->pid == getpid() && !m->context && !lanefs_gpu_is(m->gpu); }

/* Makes the mark's device current. */
static int entered(lanefs_mark *m, struct was *was)
{
	int rc;
	if (m->pid != getpid())
		return lanefs_fail(EPERM, "the mark is that of the process that forked this one");
	rc = lanefs_gpu_enter_context(m->gpu, m->context, was);
	return rc ? lanefs_gpu_not_entered(m->gpu, rc) : 0;
}

/* Restores the device that was current; errno stays that of an error. */
static void left(lanefs_mark *m, const struct was *was)
{
	int saved = errno;
	lanefs_gpu_leave(m->gpu, was);
	errno = saved;
}

int lanefs_mark_set(lanefs_mark *m)
{
	struct was was;
	int rc;
	if (!m->gpu || over(m))
		return 1;
	if (entered(m, &was))
		return -1;
	rc = lanefs_stream_captured(m->gpu, m->stream) ? -1 : lanefs_gpu_record(m->gpu, m->event, m->stream);
	left(m, &was);
	return rc;
}

/* Makes the mark's event. */
static int create(lanefs_mark *m)
{
	struct was was;
	int rc;
	if (entered(m, &was))
		return -1;
	rc = lanefs_gpu_event(m->gpu, &m->event, NO_TIME);
	left(m, &was);
	return rc;
}

lanefs_mark *lanefs_mark_new(lanefs_stage *st, const void *memory, void *stream)
{
	struct owner *o = (struct owner *)st;
	struct target t;
	lanefs_mark *m = NULL;
	if (lanefs_stage_own(o))
		return NULL;
	if (lanefs_lock(lanefs_asking(st->s), &o->lock)) /* of the stage's GPU */
		return NULL;
	int rc = lanefs_stage_target(st, memory, stream, &t);
	lanefs_unlock(&o->lock);
	void *context = NULL;
	if (rc || (t.gpu && lanefs_stream_look(t.gpu, stream, &context)))
		return NULL;
	if (!(m = calloc(1, sizeof *m))) {
		lanefs_fail(ENOMEM, NULL);
		return NULL;
	}
	*m = (struct lanefs_mark){.gpu = t.gpu, .context = context, .stream = stream, .asking = *lanefs_asking(st->s), .pid = o->pid};
	if (m->gpu && (create(m) || lanefs_mark_set(m) < 0)) {
		int saved = errno;
		lanefs_mark_free(m);
		errno = saved;
		return NULL;
	}
	return m;
}

/* Whether the stream has come to the mark now, or, if wait, when it has. */
static int look(lanefs_mark *m, int wait)
{
	struct was was;
	int rc;
	if (over(m))
		return 1;
	if (entered(m, &was))
		return -1;
	const char *what = wait ? "EventSynchronize" : "EventQuery";
	rc = wait ? CALL(m->gpu, "EventSynchronize", (void *), m->event) : CALL(m->gpu, "EventQuery", (void *), m->event);
	lanefs_gpu_leave(m->gpu, &was);
	if (rc == NOT_READY)
		return 0;
	return rc ? lanefs_gpu_bad(m->gpu, what, rc) : 1;
}

int lanefs_mark_reached(lanefs_mark *m, int wait)
{
	if (!m->gpu)
		return 1;
	if (!wait || !m->asking.f)
		return look(m, wait);
	/* The GPU's library would not let go of a wait. So it is asked again and again, less often the longer it takes. */
	int rc;
	long pause = LEAST_PAUSE;
	uint64_t asked = now_ns();
	while ((rc = look(m, 0)) == 0) {
		int handled = nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
		pause = pause < MOST_PAUSE ? 2 * pause : pause;
		if (!handled && now_ns() - asked < ASK)
			continue;
		if (lanefs_asked(&m->asking))
			return -1;
		asked = now_ns();
	}
	return rc;
}

void lanefs_mark_free(lanefs_mark *m)
{
	struct was was;
	if (!m)
		return;
	if (m->event && m->pid == getpid() && lanefs_gpu_enter_context(m->gpu, m->context, &was) == 0) { /* else it is the parent's */
		lanefs_gpu_event_end(m->gpu, m->event);
		lanefs_gpu_leave(m->gpu, &was);
	}
	free(m);
}
