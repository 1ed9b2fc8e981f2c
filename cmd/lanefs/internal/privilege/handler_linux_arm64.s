#include "textflag.h"

// System calls of arm64, and prctl's options.
#define SYS_capset 91
#define SYS_rt_sigreturn 139
#define SYS_prctl 167
#define PR_SET_NO_NEW_PRIVS 38
#define PR_SET_IO_FLUSHER 57

// handler is what handler_linux_amd64.s says.
TEXT ·handler(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD $SYS_prctl, R8
	MOVD $PR_SET_NO_NEW_PRIVS, R0
	MOVD $1, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	SVC
	MOVD $SYS_prctl, R8
	MOVD $PR_SET_IO_FLUSHER, R0 // while there is CAP_SYS_RESOURCE
	MOVD $1, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	SVC
	MOVD $SYS_capset, R8
	MOVD $·capHeader(SB), R0
	MOVD $·capData(SB), R1
	SVC
	RET

TEXT ·restorer(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD $SYS_rt_sigreturn, R8
	SVC
	BRK $0

TEXT ·handlerPC(SB),NOSPLIT,$0-8
	MOVD $·handler(SB), R0
	MOVD R0, ret+0(FP)
	RET

TEXT ·restorerPC(SB),NOSPLIT,$0-8
	MOVD $·restorer(SB), R0
	MOVD R0, ret+0(FP)
	RET
