#define _GNU_SOURCE
#include "idle.h"

void idle_put(struct idle *i, struct item *it)
{
	pthread_mutex_lock(i->lock);
	it->next = i->first;
	i->first = it;
	pthread_mutex_unlock(i->lock);
}

struct item *idle_take(struct idle *i, struct gpu *g, size_t size)
{
	pthread_mutex_lock(i->lock);
	struct item **p = &i->first, *it;
	while ((it = *p) && (it->gpu != g || it->size != size)) {
		if (lanefs_gpu_is(it->gpu)) {
			p = &it->next;
			continue;
		}
		*p = it->next; /* with the device's context went what the GPU had of it */
		i->end(it);
	}
	if (it)
		*p = it->next;
	pthread_mutex_unlock(i->lock);
	return it;
}

int idle_keep(struct idle *i, struct item *it)
{
	struct item *was = idle_own(i);
	if (i->no_own || pthread_setspecific(i->own, it))
		return -1;
	if (was)
		idle_put(i, was);
	return 0;
}
