#include "textflag.h"

// System calls of amd64, and prctl's options.
#define SYS_rt_sigreturn 15
#define SYS_capset 126
#define SYS_prctl 157
#define PR_SET_NO_NEW_PRIVS 38
#define PR_SET_IO_FLUSHER 57

// handler is entered by the kernel, by the C convention, on any thread. The signal's frame has saved every register. What
// the calls return is not looked at: whoever sent the signal reads /proc.
TEXT ·handler(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ $SYS_prctl, AX
	MOVQ $PR_SET_NO_NEW_PRIVS, DI
	MOVQ $1, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	SYSCALL
	MOVQ $SYS_prctl, AX
	MOVQ $PR_SET_IO_FLUSHER, DI // while there is CAP_SYS_RESOURCE
	MOVQ $1, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	SYSCALL
	MOVQ $SYS_capset, AX
	LEAQ ·capHeader(SB), DI
	LEAQ ·capData(SB), SI
	SYSCALL
	RET

TEXT ·restorer(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ $SYS_rt_sigreturn, AX
	SYSCALL
	INT $3

TEXT ·handlerPC(SB),NOSPLIT,$0-8
	LEAQ ·handler(SB), AX
	MOVQ AX, ret+0(FP)
	RET

TEXT ·restorerPC(SB),NOSPLIT,$0-8
	LEAQ ·restorer(SB), AX
	MOVQ AX, ret+0(FP)
	RET
