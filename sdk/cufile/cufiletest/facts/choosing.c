/*
 * Run by the Go tests beside this: how choose.c chooses, by a clock of this program's. Each case says what both ways take; the quicker one must
 * soon be the one that is taken, and the other must not cost much. Prints "ok".
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned long long clock_ns;
static int clock_of_the_test(clockid_t which, struct timespec *t)
{
	(void)which;
	t->tv_sec = (time_t)(clock_ns / 1000000000);
	t->tv_nsec = (long)(clock_ns % 1000000000);
	return 0;
}
#define clock_gettime clock_of_the_test
#include "../../choose.c"

enum { READS = 40000, SETTLED = 4000 };
enum { US = 1000, MS = 1000000 };

/* What the k-th read by a way takes, in ns. Reads by that way before it: of. */
struct story { const char *name; unsigned (*takes)(enum way w, unsigned k, unsigned of); enum way best; unsigned most, soon; /* ns a read, on the average after SETTLED, and before it (0: whatever it takes) */ };

static unsigned steady(enum way w, unsigned k, unsigned of) { (void)k, (void)of; return w == BY_LANES ? 8 * US : 10 * US; }
static unsigned set_up(enum way w, unsigned k, unsigned of) { (void)k; return of == 0 ? w == BY_LANES ? 20 * MS : 2 * MS : w == BY_LANES ? 8 * US : 10 * US; }
static unsigned set_up_thrice(enum way w, unsigned k, unsigned of) { (void)k; return of < 3 ? w == BY_LANES ? 20 * MS : 2 * MS : w == BY_LANES ? 8 * US : 10 * US; }
static unsigned interrupted(enum way w, unsigned k, unsigned of) { (void)of; return k % 97 == 5 ? 5 * MS : w == BY_LANES ? 30 * US : 10 * US; }
static unsigned interrupted_often(enum way w, unsigned k, unsigned of) { (void)of; return w == BY_LANES && k % 97 == 5 ? 100 * US : w == BY_LANES ? 8 * US : 10 * US; }
static unsigned unlucky(enum way w, unsigned k, unsigned of) { (void)k; return w == BY_CACHE && of < 3 ? 5 * MS : w == BY_LANES ? 90 * US : 10 * US; }
static unsigned warms_up(enum way w, unsigned k, unsigned of) { (void)k; return w == BY_LANES ? 13 * US : of < 6 ? 38 * US : 10 * US; }
static unsigned mapped(enum way w, unsigned k, unsigned of) { (void)k; return w == BY_CACHE ? 10 * US : of < 20 ? 90 * US : 7 * US; }
static unsigned cold(enum way w, unsigned k, unsigned of) { (void)of; return w == BY_LANES ? 40 * US : k < 2000 ? 10 * US : 300 * US; }
/* Eight threads wait for the lock of a way as often as not. */
static unsigned waits(enum way w, unsigned k, unsigned of) { (void)of; return w == BY_LANES ? 17500 : (k * 2654435761u >> 16 & 1) ? 9 * US : 31 * US; }
/* The lanes are quicker where all threads go by them: the share of those that do of late. */
static unsigned together(enum way w, unsigned k, unsigned of)
{
	static double share;
	(void)of;
	share = k ? share + ((w == BY_LANES) - share) / 16 : 0;
	return w == BY_LANES ? 23000 - (unsigned)(4000 * share) : 21000;
}
/* The lanes are much slower where all threads go by them: a single read of 64 KiB takes 45 us, one of eight at once 250. */
static unsigned crowded(enum way w, unsigned k, unsigned of)
{
	static double share;
	(void)of;
	share = k ? share + ((w == BY_LANES) - share) / 16 : 0;
	return w == BY_LANES ? 45000 + (unsigned)(205000 * share) : 33000;
}

static const struct story stories[] = {
	{"steady", steady, BY_LANES, 8 * US + 300, 0},
	{"set up", set_up, BY_LANES, 8 * US + 300, 0},
	{"set up for each of three threads", set_up_thrice, BY_LANES, 8 * US + 300, 0},
	{"interrupted", interrupted, BY_CACHE, 10 * US + 5 * MS / 97 + 1 * US, 0},
	{"interrupted, nearly as quick", interrupted_often, BY_LANES, 8 * US + 100 * US / 97 + 300, 0},
	{"unlucky at first", unlucky, BY_CACHE, 10 * US + 1 * US, 0},
	{"warms up", warms_up, BY_CACHE, 10 * US + 300, 10 * US + 500},
	{"mapped after a while", mapped, BY_LANES, 10 * US, 0},
	{"one waits for a lock", waits, BY_LANES, 17500 + 1000, 0},
	{"quicker together", together, BY_LANES, 19500, 0},
	{"slower together", crowded, BY_CACHE, 33 * US + 2 * US, 0},
	{"no longer in the page cache", cold, BY_LANES, 40 * US + 4 * US, 0},
};

int main(void)
{
	for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
		const struct story *s = &stories[i];
		struct file f = {0};
		unsigned of[WAYS] = {0}, best = 0;
		unsigned long long late = 0, soon = 0;
		for (unsigned k = 0; k < READS; k++) {
			struct move m = {.read = 1, .file = &f, .n = 4096};
			struct chosen c;
			choose(&m, 1, &c);
			unsigned ns = s->takes(c.way, k, of[c.way]++);
			clock_ns += ns;
			chose(&c, 1);
			late += k >= SETTLED ? ns : 0;
			soon += k < SETTLED ? ns : 0;
			best += k >= READS - SETTLED && c.way == s->best;
		}
		late /= READS - SETTLED;
		soon /= SETTLED;
		if (s->soon && soon > s->soon) {
			printf("%s: %llu ns a read at first, not %u\n", s->name, soon, s->soon);
			return 1;
		}
		if (best < SETTLED * 9 / 10 || late > s->most) {
			printf("%s: %u of the last %u reads by the quicker way, %llu ns a read, not %u\n", s->name, best, (unsigned)SETTLED, late, s->most);
			return 1;
		}
	}
	/* A read that ends early, at the file's end, says nothing. */
	struct file f = {0};
	struct move m = {.read = 1, .file = &f, .n = 4096};
	struct chosen c;
	for (int k = 0; k < 100; k++) {
		choose(&m, 1, &c);
		clock_ns += 10 * US;
		chose(&c, 0);
	}
	if (f.small[0][0][0].ns[BY_LANES] || f.small[0][0][0].ns[BY_CACHE])
		return 1;
	/* What the lanes take is another time: the next read finds out. */
	unsigned by_lanes = 0;
	f = (struct file){0};
	for (int k = 0; k < 5100; k++) {
		if (k == 5000) {
			choose_again(&f);
			by_lanes = 0;
		}
		choose(&m, 1, &c);
		by_lanes += c.way == BY_LANES;
		clock_ns += c.way == BY_CACHE ? 20 * US : k < 5000 ? 25 * US : 11 * US;
		chose(&c, 1);
	}
	if (by_lanes < 95) {
		printf("%u of 100 reads by the lanes\n", by_lanes);
		return 1;
	}
	puts("ok");
	return 0;
}
