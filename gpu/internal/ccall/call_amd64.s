#include "textflag.h"

DATA ·enterPC(SB)/8, $enter(SB)
GLOBL ·enterPC(SB), NOPTR|RODATA, $8

// enter(c *Call) calls c.first(c.firstArg), unless that is 0, and c.fn(c.args...), as C functions call one another (System V ABI, AMD64 supplement §3.2):
// six arguments in registers, the others on the stack, which is aligned to 16 bytes; BX and BP are the caller's; AL is the number of vector registers that are used.
// The offsets are those of Call.
TEXT enter(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	SUBQ  $120, SP // fourteen arguments, and BX above them
	ANDQ  $~15, SP
	MOVQ  DI, BX
	MOVQ  0(BX), R11
	TESTQ R11, R11
	JZ    second
	MOVQ  8(BX), DI
	XORL  AX, AX
	CALL  R11
	MOVQ  AX, 16(BX)
	TESTL AX, AX
	JNZ   out

second:
	MOVQ 32(BX), CX

next:
	TESTQ CX, CX
	JZ    call
	DECQ  CX
	MOVQ  96(BX)(CX*8), AX
	MOVQ  AX, 0(SP)(CX*8)
	JMP   next

call:
	MOVQ 48(BX), DI
	MOVQ 56(BX), SI
	MOVQ 64(BX), DX
	MOVQ 72(BX), CX
	MOVQ 80(BX), R8
	MOVQ 88(BX), R9
	MOVQ 24(BX), R11
	XORL AX, AX
	CALL R11
	MOVQ AX, 40(BX)

out:
	LEAQ -8(BP), SP
	POPQ BX
	POPQ BP
	XORL AX, AX
	RET
