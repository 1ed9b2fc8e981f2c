/* The command line of the model's programs. */
#ifndef MODEL_MAIN_H
#define MODEL_MAIN_H

#include "checker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 *     [-weaken PC,PC...] [-sites] [-most RUNS] [-strict] [-trace] [-first] [PROGRAM...]
 *
 * One line for each program: how many executions, or what is wrong; with -trace, the events of that execution too; with -first,
 * no more after the first that is wrong. The status is 1 if something is wrong.
 */
struct harness {
	int first, argc, bad = 0;
	char **argv;
	bool sites = false, strict = false, trace = false, once = false;
	model::options o;
	harness(int n, char **args) : first(1), argc(n), argv(args) {
		static uintptr_t pcs[4096];
		for (; first < argc && argv[first][0] == '-'; first++)
			if (strcmp(argv[first], "-sites") == 0)
				sites = true;
			else if (strcmp(argv[first], "-strict") == 0)
				strict = true; /* C11 for all */
			else if (strcmp(argv[first], "-first") == 0)
				once = true;
			else if (strcmp(argv[first], "-trace") == 0)
				trace = true;
			else if (strcmp(argv[first], "-most") == 0)
				o.most_runs = strtoull(argv[++first], nullptr, 10);
			else if (strcmp(argv[first], "-weaken") == 0) {
				size_t count = 0;
				for (char *p = strtok(argv[++first], ","); p; p = strtok(nullptr, ","))
					pcs[count++] = strtoull(p, nullptr, 16);
				model::weaken(pcs, count);
			}
	}
	bool wants(const char *name) const {
		if (once && bad)
			return false;
		bool any = first == argc;
		for (int i = first; i < argc; i++)
			any = any || strcmp(argv[i], name) == 0;
		return any;
	}
	void run(const model::program &p, bool cumulative) {
		static char what[16384];
		model::counts n;
		o.cumulative = cumulative && !strict;
		bool ok = model::check(p, o, &n, what, sizeof what);
		if (!trace)
			what[strcspn(what, "\n")] = 0;
		if (ok)
			printf("%s: %llu executions, %llu that wait\n", p.name, (unsigned long long)n.whole, (unsigned long long)n.waiting);
		else
			printf("%s: WRONG after %llu runs: %s\n", p.name, (unsigned long long)n.runs, what);
		fflush(stdout);
		bad |= !ok;
	}
	int end() {
		if (sites)
			model::each_site([](uintptr_t pc, const char *kind, int order) { printf("site %lx %d %s\n", pc, order, kind); });
		return bad;
	}
};

#endif
