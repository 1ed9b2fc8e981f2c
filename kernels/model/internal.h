/* Between the parts of the checker: the search (checker.cc), the compiler's calls (hooks.cc), coroutines (context.cc). */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

namespace model {

enum class access : uint8_t { load, store, exchange_load, exchange_store, fence };
inline bool is_load(access k) { return k == access::load || k == access::exchange_load; }
inline bool is_store(access k) { return k == access::store || k == access::exchange_store; }

/* What a thread is about to do. */
struct request {
	access kind;
	uint8_t order, size;
	uint16_t loc;
	uint64_t value;
	uintptr_t pc;
};

/* Called for accesses of the program's threads; is_shared says whether one is. exchange: of a load and store that are one. */
bool is_shared(const void *p);
void plain(const void *p, size_t size, bool store, uintptr_t pc);
uint64_t atomic_load(const void *p, size_t size, int order, uintptr_t pc, bool exchange = false);
void atomic_store(void *p, size_t size, uint64_t v, int order, uintptr_t pc, bool exchange = false);
void atomic_fence(int order, uintptr_t pc);

/* A coroutine, or the scheduler, while it does not run. */
struct context {
	void *sp;
};
void prepare(context *c, int thread); /* to begin run_thread(), on that thread's stack */
void run_thread();
void change(context *from, const context *to);

} // namespace model

#endif
