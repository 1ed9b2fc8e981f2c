/*
 * A model checker for a few threads of C or C++: it runs a program once for each execution that the C11 memory model allows
 * (checker.cc says which one, and how).
 *
 * What is checked is compiled with -fsanitize=thread, unchanged: the compiler then calls a function for each access to memory
 * that may be shared, with its order, and those functions are the checker's (hooks.cc). A program's threads are functions that
 * share nothing but static memory which share() has named, and do the same in each run. Their own variables may be anywhere else.
 */
#ifndef MODEL_CHECKER_H
#define MODEL_CHECKER_H

#include <stddef.h>
#include <stdint.h>

namespace model {

/* A program: it is set up, and then its threads run. */
struct program {
	const char *name;
	void (*setup)();
	void (*threads[4])();
};

/* Called once, by main: the memory that threads share, 16-byte aligned. It is zero when setup begins. */
void share(void *memory, size_t bytes);

/* Called by threads. */

/* The program is wrong. Does not return. */
[[noreturn]] void fail(const char *what, uint64_t a = 0, uint64_t b = 0);

/*
 * A loop that waits says where a turn begins, and that the turn has found nothing and changed nothing: again() does not return, and
 * the thread goes on in other executions, where one of the turn's loads sees another store. If there can be none, nobody goes on, and
 * the program is wrong.
 */
void turn();
[[noreturn]] void again();

/* The number of the thread that runs, 0 if none does. */
int self();

/* How many executions there were, by how they end. */
struct counts {
	uint64_t whole, waiting; /* all threads ended; some wait for a store that has been made already */
	uint64_t runs;
};

struct options {
	uint64_t most_runs = 0; /* 0: no limit */
	bool cumulative = false; /* a release fence also passes on what the loads before it have seen: more than C11, see checker.cc */
	bool exhaustive = false; /* by brute force: to check the checker */
};

/* Runs all executions of p. Returns false, with what[] saying why, at the first that is wrong. */
bool check(const program &p, const options &o, counts *n, char *what, size_t size);

/* Accesses at these addresses of the program's code order nothing: what if one were missing? */
void weaken(const uintptr_t *pcs, size_t n);

/* Calls f for each address of the code that asked for an order, with its kind ("load", "fence" ...) and that order as in C11. */
void each_site(void (*f)(uintptr_t pc, const char *kind, int order));

} // namespace model

#endif
