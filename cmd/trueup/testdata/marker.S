# marker.S: a sector that prints the text behind it through the BIOS and halts. It runs wherever it is loaded, so that it can stand for
# a boot sector (0:7C00) and for a stage of GRUB legacy (0:8000, 0:8200).
#
# boot_disk_test.go says how the bytes are made, and holds them.

	.code16
	.globl	start

start:	cli
	call	here			# where am I?
here:	pop	%si
	add	$text - here, %si
	xor	%ax, %ax		# segment 0 in all three places
	mov	%ax, %ds
	mov	%ax, %ss
	mov	$0x7000, %sp
	cld
	sti
next:	lodsb
	test	%al, %al
	jz	done
	mov	$7, %bx
	mov	$0x0e, %ah
	int	$0x10
	jmp	next
done:	hlt
	jmp	done
text:					# NUL-terminated
