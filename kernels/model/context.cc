/* Coroutines, by hand: swapcontext makes a system call each time. */
#include "internal.h"

#if !defined(__x86_64__)
#error "the checker's coroutines are for x86-64"
#endif

asm(".text\n"
	".globl model_change\n"
	"model_change:\n"
	"	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov (%rsi), %rsp\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
	"	ret\n");
extern "C" void model_change(model::context *, const model::context *);

namespace model {

alignas(64) static char stacks[4][256 << 10];

void change(context *from, const context *to) { model_change(from, to); }

void prepare(context *c, int thread) {
	void **top = (void **)(stacks[thread] + sizeof stacks[thread]) - 2; /* as after a call: 8 modulo 16 */
	*top = (void *)run_thread;
	c->sp = top - 6; /* six registers, of no matter what */
}

} // namespace model
