# lba-mbr.S: a master boot record that reads the boot sector by its LBA and hands no table entry over, as the MBR code of
# Windows Vista and later does. The boot sector can find its own partition only through the hidden sectors at 0x1C of
# its BPB, so that a disk with this MBR boots only if those are right.
#
# boot_disk_test.go holds the assembled bytes and says how they are made.
#
# What the BIOS leaves: this sector at 0:7C00, the boot drive in DL. What the boot sector gets: itself at 0:7C00, DL as
# it was, and DS:SI at sixteen zero bytes, which are no entry.
#
# On failure "LBA:" and one letter go to the console, and the machine halts:
#
#	N  no active entry	R  the BIOS could not read that LBA	B  what was read has no 55 AA

	.code16
	.globl	start

	.set	LOADED, 0x7c00		# where the BIOS loads boot sectors
	.set	SIGNATURE, LOADED + 510
	.set	TABLE, 0x600 + 446	# the table in the relocated copy

start:	cli
	xorw	%ax, %ax
	movw	%ax, %ss
	movw	$LOADED, %sp
	movw	%ax, %ds
	movw	%ax, %es
	sti
	cld
	movw	%sp, %si
	movw	$start, %di		# linked at 0x600
	movw	$256, %cx
	rep movsw			# make room for the boot sector
	ljmp	$0, $copy

copy:	movw	$TABLE, %bp
	movw	$4, %cx
find:	testb	$0x80, (%bp)		# the active flag
	jnz	found
	addw	$16, %bp
	loop	find
	movb	$'N', %al
	jmp	fail

found:	movl	8(%bp), %eax		# the entry's first LBA
	movl	%eax, packet + 8
	movw	$packet, %si
	movb	$0x42, %ah		# extended read
	int	$0x13
	movb	$'R', %al
	jc	fail
	cmpw	$0xaa55, SIGNATURE
	movb	$'B', %al
	jne	fail
	movw	$noentry, %si
	ljmp	$0, $LOADED

fail:	movb	%al, letter
	movw	$message, %si
	movw	$7, %bx
print:	lodsb
	testb	%al, %al
	jz	stop
	movb	$0x0e, %ah		# teletype output
	int	$0x10
	jmp	print
stop:	hlt
	jmp	stop

message: .ascii	"LBA:"
letter:	.byte	0, 0

	.balign	4
packet:	.byte	16, 0			# disk address packet: its size, reserved
	.word	1, LOADED, 0		# sectors, buffer's offset and segment
	.quad	0			# first LBA
noentry: .zero	16
