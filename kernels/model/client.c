/* The C client's rings, sdk/c/ring.c as it is, with a model of what it calls. */
#define write(fd, p, n) model_write(fd, p, n)
#ifndef SOURCE
#define SOURCE "../../sdk/c/ring.c"
#endif
#include SOURCE

void model_done(uint64_t data, int64_t result);

/* Makes requests 1 to total, as many at a time as there is room for, and reaps their completions. */
void model_client(char *memory, unsigned entries, unsigned total)
{
	lanefs_ring r = {.entries = entries, .completions = 2 * entries, .memory = memory};
	for (unsigned submitted = 0, done = 0; done < total;) {
		struct lanefs_request q = {.data = submitted + 1, .length = submitted + 1};
		if (submitted < total && lanefs_ring_submit(&r, &q, 1) == 1) {
			submitted++;
			continue;
		}
		struct lanefs_completion c[4];
		int n = lanefs_ring_reap(&r, c, 4, 0); /* without polling, which is more of the same looks; lanefs_wait_for waits all the same */
		for (int i = 0; i < n; i++)
			model_done(c[i].data, c[i].result);
		done += (unsigned)n;
	}
}
