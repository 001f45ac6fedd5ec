# chs-mbr.S: a master boot record that finds the boot sector through the start CHS bytes of the table, as the MBR code of
# DOS and of Windows 2000, XP and 2003 does. The start LBA of the entry is never looked at, so that a disk with
# this MBR boots only if the CHS bytes are right.
#
# boot_disk_test.go holds the assembled bytes and says how they are made.
#
# What the BIOS leaves: this sector at 0:7C00, the boot drive in DL. What the boot sector gets: itself at 0:7C00, DL as
# it was, DS:SI at its entry of the table (in the copy at 0:0600).
#
# On failure "CHS:" and one letter go to the console, and the machine halts:
#
#	N  no active entry	R  the BIOS could not read those CHS	B  what was read has no 55 AA

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

copy:	movw	$TABLE, %si
	movw	$4, %cx
find:	testb	$0x80, (%si)		# the active flag
	jnz	found
	addw	$16, %si
	loop	find
	movb	$'N', %al
	jmp	fail

found:	movb	1(%si), %dh		# head
	movw	2(%si), %cx		# cylinder and sector, as INT 13h wants them
	movw	$0x0201, %ax		# read one sector
	movw	$LOADED, %bx
	int	$0x13
	movb	$'R', %al
	jc	fail
	cmpw	$0xaa55, SIGNATURE
	movb	$'B', %al
	jne	fail
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

message: .ascii	"CHS:"
letter:	.byte	0, 0
