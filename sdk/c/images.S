/*
 * The images of kernels/pieces.hip for the GPUs that it is built for, and for HIP's stand-in, as lanefs_images in stagegpu.c lists them.
 * PTX is text, which ends with a zero byte.
 */
	.section .rodata
	.macro image name, file
	.balign 64
	.globl lanefs_image_\name
	.hidden lanefs_image_\name
lanefs_image_\name:
	.incbin "\file"
	.byte 0
	.endm

	image sm_80, "images/sm_80.ptx"
	image gfx90a, "images/gfx90a.co"
	image gfx942, "images/gfx942.co"
	image gfx1100, "images/gfx1100.co"
	image gfx1201, "images/gfx1201.co"
	image gfx950, "images/gfx950.co"
	image gfx9_4_generic, "images/gfx9-4-generic.co"
	image gfx11_generic, "images/gfx11-generic.co"
	image gfx12_generic, "images/gfx12-generic.co"
#if defined(__aarch64__)
	image host, "images/host-aarch64.so"
#else
	image host, "images/host-x86_64.so"
#endif

	.section .note.GNU-stack, "", %progbits
