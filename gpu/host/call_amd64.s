#include "textflag.h"

DATA ·enterPC(SB)/8, $enter(SB)
GLOBL ·enterPC(SB), NOPTR|RODATA, $8

// enter(at *[3]uintptr) calls at[0] with at[1] and at[2], as C functions call one another (System V ABI, AMD64 supplement §3.2).
TEXT enter(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	ANDQ  $~15, SP
	MOVQ  0(DI), AX
	MOVQ  16(DI), SI
	MOVQ  8(DI), DI
	CALL  AX
	MOVQ  BP, SP
	POPQ  BP
	XORL  AX, AX
	RET
