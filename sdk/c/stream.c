/*
 * Streams that a program names, which may be none for the library's calls: a stream that is captured into a graph (cudaStreamBeginCapture, torch.cuda.graph), and one of a context that the
 * program has made itself (cuCtxCreate, PyCUDA), while the library's calls are in the device's primary context.
 *
 * A call on a captured stream would become a part of the graph, and a wait for it ends the capture: such a stream is refused, before anything is called on it. Calls of one context on streams
 * of another are refused by CUDA: such a stream is waited for, and the copies are, too, before the call returns.
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

enum { PER_THREAD = 2 };  /* CU_STREAM_PER_THREAD. This handle and those below, 0 and CU_STREAM_LEGACY, are another stream in each context */
enum { NOT_CAPTURED = 0 }; /* CU_STREAM_CAPTURE_STATUS_NONE */
enum { IMPLICIT = 906 };  /* CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, of the default stream: another one, which it waits for, is captured */

static int refused(const char *text)
{
	struct failure f = {.code = EINVAL, .gpu = 1};
	snprintf(f.text, sizeof f.text, "%s", text);
	return lanefs_fail_as(&f);
}

int lanefs_stream_captured(struct gpu *g, void *stream)
{
	int status = NOT_CAPTURED, rc = CALL(g, "StreamIsCapturing", (void *, int *), stream, &status);
	if (rc == IMPLICIT)
		return refused("the default stream waits for one that is being captured into a graph: name another stream, or wait for the capture's end");
	if (rc || status == NOT_CAPTURED) /* what is wrong with the stream the calls on it say */
		return 0;
	return refused("the stream is being captured into a graph, which files have no part in: read and write before the capture, or on another stream");
}

static int is_default(const void *stream) { return (uintptr_t)stream <= PER_THREAD; }

/* The context, made by the program on this device, that a stream is of; NULL: it is of none. A default stream is the current context's. */
static void *made(struct gpu *g, void *stream)
{
	void *c = NULL;
	int device = -1;
	struct was was;
	if (g->hip || (is_default(stream) ? CALL(g, "CtxGetCurrent", (void **), &c) : CALL(g, "StreamGetCtx", (void *, void **), stream, &c)))
		return NULL;
	if (!c || c == g->context || lanefs_gpu_enter_context(g, c, &was))
		return NULL;
	CALL(g, "CtxGetDevice", (int *), &device);
	lanefs_gpu_leave(g, &was);
	return device == g->ordinal ? c : NULL; /* another device's default stream is not meant, others of it are refused */
}

int lanefs_stream_look(struct gpu *g, void *stream, void **context)
{
	struct was was;
	int captured = is_default(stream) ? 0 : lanefs_stream_captured(g, stream);
	if (captured)
		return captured;
	*context = made(g, stream);
	if (is_default(stream) && lanefs_gpu_enter_context(g, *context, &was) == 0) {
		captured = lanefs_stream_captured(g, stream);
		int saved = errno;
		lanefs_gpu_leave(g, &was);
		errno = saved;
	}
	return captured;
}

int lanefs_stream_wait(struct gpu *g, void *context, void *stream)
{
	struct was was;
	int rc = lanefs_gpu_enter_context(g, context, &was);
	if (rc)
		return lanefs_gpu_not_entered(g, rc);
	rc = CALL(g, "StreamSynchronize", (void *), stream);
	lanefs_gpu_leave(g, &was);
	return rc ? lanefs_gpu_bad(g, "StreamSynchronize", rc) : 0;
}
