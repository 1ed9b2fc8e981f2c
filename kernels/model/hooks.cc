/* What clang's -fsanitize=thread has a program call at its accesses to memory. Here they go to the checker. */
#include "internal.h"

#include <string.h>

using namespace model;

#define PC ((uintptr_t)__builtin_return_address(0))

#define PLAIN(n) \
	extern "C" void __tsan_read##n(void *p) { plain(p, n, false, PC); } \
	extern "C" void __tsan_write##n(void *p) { plain(p, n, true, PC); } \
	extern "C" void __tsan_unaligned_read##n(void *p) { plain(p, n, false, PC); } \
	extern "C" void __tsan_unaligned_write##n(void *p) { plain(p, n, true, PC); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define ATOMIC(bits) \
	typedef uint##bits##_t u##bits; \
	static u##bits exchange##bits(volatile u##bits *p, u##bits was, u##bits v, int order, uintptr_t pc) { \
		atomic_store((void *)p, sizeof *p, v, order, pc, true); \
		return was; \
	} \
	static u##bits first##bits(volatile u##bits *p, int order, uintptr_t pc) { \
		return (u##bits)atomic_load((void *)p, sizeof *p, order, pc, true); \
	} \
	extern "C" u##bits __tsan_atomic##bits##_load(const volatile u##bits *p, int order) { \
		return is_shared((void *)p) ? (u##bits)atomic_load((void *)p, sizeof *p, order, PC) : *p; \
	} \
	extern "C" void __tsan_atomic##bits##_store(volatile u##bits *p, u##bits v, int order) { \
		if (is_shared((void *)p)) \
			atomic_store((void *)p, sizeof *p, v, order, PC); \
		else \
			*p = v; \
	} \
	extern "C" u##bits __tsan_atomic##bits##_exchange(volatile u##bits *p, u##bits v, int order) { \
		if (is_shared((void *)p)) \
			return exchange##bits(p, first##bits(p, order, PC), v, order, PC); \
		u##bits was = *p; \
		*p = v; \
		return was; \
	} \
	extern "C" u##bits __tsan_atomic##bits##_fetch_add(volatile u##bits *p, u##bits v, int order) { \
		if (is_shared((void *)p)) { \
			u##bits was = first##bits(p, order, PC); \
			return exchange##bits(p, was, (u##bits)(was + v), order, PC); \
		} \
		u##bits was = *p; \
		*p = (u##bits)(was + v); \
		return was; \
	} \
	extern "C" u##bits __tsan_atomic##bits##_compare_exchange_val(volatile u##bits *p, u##bits expected, u##bits v, int order, int) { \
		if (is_shared((void *)p)) { \
			u##bits was = first##bits(p, order, PC); \
			return was == expected ? exchange##bits(p, was, v, order, PC) : was; \
		} \
		u##bits was = *p; \
		if (was == expected) \
			*p = v; \
		return was; \
	}
ATOMIC(32)
ATOMIC(64)

extern "C" {
void __tsan_init() {}
void __tsan_atomic_thread_fence(int order) { atomic_fence(order, PC); }
void __tsan_atomic_signal_fence(int) {}
void *__tsan_memset(void *p, int v, size_t n) {
	plain(p, n, true, PC);
	return memset(p, v, n);
}
void *__tsan_memcpy(void *to, const void *from, size_t n) {
	plain(from, n, false, PC);
	plain(to, n, true, PC);
	return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) { return __tsan_memcpy(to, from, n); }
}
