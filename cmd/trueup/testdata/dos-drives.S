# dos-drives.S: a boot sector that finds logical drives as MS-DOS 4.0 does (src/BIOS/MSINIT.ASM, FIND_MINI_PARTITION): it reads each boot
# record of the chain by its CHS bytes, keeps the cylinder of it, and takes a drive to begin as many sectors behind the begin of that
# cylinder as the entry says. Of each drive it prints the eight characters behind the jump of its boot sector, then "end".
#
# boot_disk_test.go says how the bytes are made. It stands behind the parameter block of a FAT, and does not use that.

	.code16
	.globl	start

	.set	RECORD, 0x8000
	.set	DRIVE, 0x8200
	.set	ENTRIES, RECORD + 446

start:	cli
	xorw	%ax, %ax
	movw	%ax, %ss
	movw	$0x7000, %sp
	movw	%ax, %ds
	movw	%ax, %es
	sti
	cld
	call	base
base:	popw	%bp			# wherever this was loaded
	movb	$8, %ah			# the geometry of the BIOS
	movb	$0x80, %dl
	pushw	%bp
	int	$0x13
	popw	%bp
	xorw	%ax, %ax
	movw	%ax, %es
	andw	$0x3f, %cx
	movw	%cx, sectors
	movzbw	%dh, %dx
	incw	%dx
	movw	%dx, heads
	movw	$1, %cx			# sector 0 of the disk
	movb	$0, %dh
	movw	$RECORD, %bx
	call	read
	movw	$ENTRIES, %si
	movw	$4, %cx
find:	cmpb	$5, 4(%si)		# the extended partition
	je	link
	addw	$16, %si
	loop	find
	jmp	done

link:	movb	1(%si), %dh
	movw	2(%si), %cx
	movw	$RECORD, %bx
	pushw	%cx
	call	read
	popw	%cx
	movb	%cl, %al		# the cylinder alone
	rolb	$2, %al
	andw	$3, %ax
	movb	%al, %ah
	movb	%ch, %al
	mulw	heads
	mulw	sectors
	addw	ENTRIES + 8, %ax	# and the relative start
	adcw	ENTRIES + 10, %dx
	divw	sectors			# back to CHS, as the BIOS wants it
	movw	%dx, %cx
	incw	%cx
	xorw	%dx, %dx
	divw	heads
	movb	%dl, %dh
	movb	%al, %ch
	rorb	$2, %ah
	orb	%ah, %cl
	movw	$DRIVE, %bx
	call	read
	movw	$DRIVE + 3, %si
	movw	$8, %cx
	call	print
	movw	$ENTRIES + 16, %si
	cmpb	$5, 4(%si)
	je	link

done:	leaw	message - base(%bp), %si
	movw	$5, %cx
	call	print
stop:	hlt
	jmp	stop

read:	movw	$0x0201, %ax
	movb	$0x80, %dl
	int	$0x13
	ret

print:	lodsb
	cmpb	$0x20, %al
	jae	shown
	movb	$'?', %al
shown:	pushw	%cx
	movw	$7, %bx
	movb	$0x0e, %ah
	int	$0x10
	popw	%cx
	loop	print
	ret

message: .ascii	" end."
	.set	sectors, 0x8400
	.set	heads, 0x8402
