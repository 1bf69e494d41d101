#include "textflag.h"

// The child of rawSpawn shares the parent's memory and must run no Go code (no
// stack growth, no write barrier, no race detector), so the whole of it is
// here: a loop that makes the system calls of a prepared list and touches no
// stack (it has its parent's stack pointer). Offsets are those of struct program and struct op in spawn.go; a test
// compares them.

#define SYS_rt_sigprocmask 14
#define SYS_exit_group 231
#define SYS_clone3 435
#define SIG_SETMASK 2

// func rawSpawn(args unsafe.Pointer, size uintptr, prog unsafe.Pointer, all *uint64, old *uint64) (ret int64)
TEXT ·rawSpawn(SB),NOSPLIT|NOFRAME,$0-48
	// A signal handler of the Go runtime must not run in the child: block all
	// of them until the child has made its own mask (its last step but one).
	MOVQ $SYS_rt_sigprocmask, AX
	MOVQ $SIG_SETMASK, DI
	MOVQ all+24(FP), SI
	MOVQ old+32(FP), DX
	MOVQ $8, R10
	SYSCALL

	MOVQ prog+16(FP), R12
	MOVQ $SYS_clone3, AX
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	SYSCALL
	TESTQ AX, AX
	JEQ child
	MOVQ AX, ret+40(FP)

	MOVQ $SYS_rt_sigprocmask, AX
	MOVQ $SIG_SETMASK, DI
	MOVQ old+32(FP), SI
	MOVQ $0, DX
	MOVQ $8, R10
	SYSCALL
	RET

child:
	MOVQ 0(R12), R13 // first op
	MOVQ 8(R12), BX  // how many
	XORQ R14, R14    // index

next:
	CMPQ R14, BX
	JGE  quit
	MOVQ 0(R13), AX
	MOVQ 8(R13), DI
	MOVQ 16(R13), SI
	MOVQ 24(R13), DX
	MOVQ 32(R13), R10
	MOVQ 40(R13), R8
	MOVQ 48(R13), R9
	SYSCALL
	CMPQ AX, 56(R13) // op.min
	JGE  good
	CMPQ 64(R13), $0 // op.mayFail
	JNE  good
	NEGQ AX
	MOVQ AX, 24(R12) // program.errno
	INCQ R14
	MOVQ R14, 16(R12) // program.failed: index + 1
	JMP  quit

good:
	ADDQ $72, R13
	INCQ R14
	JMP  next

quit:
	MOVQ $SYS_exit_group, AX
	MOVQ $127, DI
	SYSCALL
	JMP  quit
