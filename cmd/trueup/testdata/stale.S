# stale.S: what lies where a stale sector number points to: code that says so, instead of whatever would be there and hang. It runs at any
# address, from a boot sector or from what a boot loader takes for its next stage.
#
# boot_code_test.go holds the assembled bytes; its first lines say how they are made.
	.code16
	.globl start
start:
	cli
	xor %ax, %ax
	mov %ax, %ds
	mov %ax, %ss
	mov $0x7000, %sp
	sti
	call here
here:
	pop %si
	add $(text - here), %si
	cld
next:
	lodsb
	test %al, %al
	jz stop
	mov $0x0e, %ah
	mov $7, %bx
	int $0x10
	jmp next
stop:
	hlt
	jmp stop
text:
	.asciz "trueup: stale sectors"
