#include "textflag.h"

// func self() uintptr
TEXT ·self(SB), NOSPLIT, $0-8
	MOVD g, R0
	MOVD R0, ret+0(FP)
	RET
