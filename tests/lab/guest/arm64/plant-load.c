// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * ../programs/plant-load.c for arm64: its one statement for x86, a system call with text in
 * registers, becomes a call of the function below.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* What arm64 has instead takes a directory before each path. */
#define SYS_mkdir SYS_mkdirat
#define SYS_rename SYS_renameat

static long system_call(long number, const char *first, const char *second, const uint64_t *words)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = AT_FDCWD;
	register const char *x1 __asm__("x1") = first;
	register long x2 __asm__("x2") = number == SYS_mkdirat ? 0755 : AT_FDCWD;
	register const char *x3 __asm__("x3") = second;
	register uint64_t x19 __asm__("x19") = words[0], x20 __asm__("x20") = words[1];
	register uint64_t x21 __asm__("x21") = words[2], x22 __asm__("x22") = words[3];
	register uint64_t x23 __asm__("x23") = words[4], x24 __asm__("x24") = words[5];

	__asm__ __volatile__("fmov d0, %5\n\tfmov d1, %6\n\tsvc #0"
			     : "+r"(x0)
			     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x19), "r"(x20), "r"(x21),
			       "r"(x22), "r"(x23), "r"(x24)
			     : "memory", "v0", "v1");
	return x0;
}

#define asm(register)
#define volatile(...) volatile(""); result = system_call(number, first, second, words)

#include "../programs/plant-load.c"
