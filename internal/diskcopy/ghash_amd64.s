#include "textflag.h"

// The order of the bytes of a block is turned round, for two blocks.
DATA reversed<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reversed<>+8(SB)/8, $0x0001020304050607
DATA reversed<>+16(SB)/8, $0x08090a0b0c0d0e0f
DATA reversed<>+24(SB)/8, $0x0001020304050607
GLOBL reversed<>(SB), RODATA|NOPTR, $32

// x^127 + x^126 + x^121 + 1
DATA modulus<>+0(SB)/8, $0x0000000000000001
DATA modulus<>+8(SB)/8, $0xc200000000000000
GLOBL modulus<>(SB), RODATA|NOPTR, $16

// MULTIPLY multiplies the two blocks in Y1 with their powers, and begins the sums in Y2 (low), Y3 (high) and Y5 (middle,
// by Karatsuba) with the products.
#define MULTIPLY(at, sums) \
	VPCLMULQDQ $0x00, at(AX), Y1, Y2   \
	VPCLMULQDQ $0x11, at(AX), Y1, Y3   \
	VPSHUFD    $78, Y1, Y4             \
	VPXOR      Y1, Y4, Y4              \
	VPCLMULQDQ $0x00, sums(AX), Y4, Y5

// NEXT adds the products of the two blocks at SI + at.
#define NEXT(at, sums) \
	VMOVDQU    at(SI), Y1              \
	VPSHUFB    Y15, Y1, Y1             \
	VPCLMULQDQ $0x00, at(AX), Y1, Y6   \
	VPCLMULQDQ $0x11, at(AX), Y1, Y7   \
	VPSHUFD    $78, Y1, Y4             \
	VPXOR      Y1, Y4, Y4              \
	VPCLMULQDQ $0x00, sums(AX), Y4, Y8 \
	VPXOR      Y6, Y2, Y2              \
	VPXOR      Y7, Y3, Y3              \
	VPXOR      Y8, Y5, Y5

// REDUCE makes the state X0 of the sums X2, X3 and X5.
#define REDUCE \
	VPXOR      X2, X5, X5          \
	VPXOR      X3, X5, X5          \
	VPSLLDQ    $8, X5, X6          \
	VPXOR      X6, X2, X2          \
	VPSRLDQ    $8, X5, X6          \
	VPXOR      X6, X3, X3          \
	VPCLMULQDQ $0x10, X14, X2, X6  \
	VPSHUFD    $78, X2, X2         \
	VPXOR      X6, X2, X2          \
	VPCLMULQDQ $0x10, X14, X2, X6  \
	VPSHUFD    $78, X2, X2         \
	VPXOR      X6, X2, X2          \
	VPXOR      X3, X2, X0

// func multiplyBlocks(powers *powers, state *[16]byte, p *byte, blocks int)
TEXT ·multiplyBlocks(SB), NOSPLIT, $0-32
	MOVQ    powers+0(FP), AX
	MOVQ    state+8(FP), BX
	MOVQ    p+16(FP), SI
	MOVQ    blocks+24(FP), CX
	VMOVDQU (BX), X0
	VMOVDQU reversed<>(SB), Y15
	VMOVDQU modulus<>(SB), X14
	CMPQ    CX, $16
	JB      rest

sixteen:
	VMOVDQU (SI), Y1
	VPSHUFB Y15, Y1, Y1
	VPXOR   Y0, Y1, Y1 // the upper half of Y0 is zero
	MULTIPLY(0, 256)
	NEXT(32, 288)
	NEXT(64, 320)
	NEXT(96, 352)
	NEXT(128, 384)
	NEXT(160, 416)
	NEXT(192, 448)
	NEXT(224, 480)
	VEXTRACTI128 $1, Y2, X6
	VPXOR        X6, X2, X2
	VEXTRACTI128 $1, Y3, X6
	VPXOR        X6, X3, X3
	VEXTRACTI128 $1, Y5, X6
	VPXOR        X6, X5, X5
	REDUCE
	ADDQ         $256, SI
	SUBQ         $16, CX
	CMPQ         CX, $16
	JAE          sixteen

rest:
	TESTQ      CX, CX
	JZ         done
	VMOVDQU    (SI), X1
	VPSHUFB    X15, X1, X1
	VPXOR      X0, X1, X1
	VMOVDQU    240(AX), X7 // the first power
	VPCLMULQDQ $0x00, X7, X1, X2
	VPCLMULQDQ $0x11, X7, X1, X3
	VPSHUFD    $78, X1, X4
	VPXOR      X1, X4, X4
	VMOVDQU    496(AX), X7
	VPCLMULQDQ $0x00, X7, X4, X5
	REDUCE
	ADDQ       $16, SI
	DECQ       CX
	JMP        rest

done:
	VMOVDQU X0, (BX)
	VZEROUPPER
	RET

// func leaf7() (ecx uint32)
TEXT ·leaf7(SB), NOSPLIT, $0-4
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL CX, ecx+0(FP)
	RET
