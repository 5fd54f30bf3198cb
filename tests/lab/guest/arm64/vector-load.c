// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * vector-load: processes with text in the registers of SVE and SME, none of which runs all the time.
 *
 * A system call loses what SVE's registers have beyond those of floating point, and leaves the
 * streaming mode of SME, so that such processes spin: they are stopped, or preempted. ZA stays.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SME_SET_VL
#define PR_SME_SET_VL 63
#endif
#define SVE (1UL << 22)
#define SME (1UL << 23)
/* Bytes of the longest vectors, of which ZA has a square. */
#define MOST 256

enum how { STOPPED, PREEMPTED, STREAMING, ZA };

static const struct { enum how how; int length; } processes[] = {
	{ STOPPED, 16 }, { STOPPED, 32 }, { STOPPED, 64 }, { STOPPED, MOST },
	{ STREAMING, 32 }, { STREAMING, MOST }, { ZA, 16 }, { ZA, 64 },
	/* More than CPUs. QEMU 7.2 writes a wrong dump of CPUs whose vectors differ in length. */
	{ PREEMPTED, 64 }, { PREEMPTED, 64 }, { PREEMPTED, 64 }, { PREEMPTED, 64 },
};

static unsigned char text[MOST * MOST] __attribute__((aligned(MOST)));

#define Z(n) "ldr z" #n ", [%0, #" #n ", mul vl]\n\t"
#define P(n) "ldr p" #n ", [%0, #" #n ", mul vl]\n\t"
#define REGISTERS \
	Z(0) Z(1) Z(2) Z(3) Z(4) Z(5) Z(6) Z(7) Z(8) Z(9) Z(10) Z(11) Z(12) Z(13) Z(14) Z(15) Z(16) \
	Z(17) Z(18) Z(19) Z(20) Z(21) Z(22) Z(23) Z(24) Z(25) Z(26) Z(27) Z(28) Z(29) Z(30) Z(31) \
	P(0) P(1) P(2) P(3) P(4) P(5) P(6) P(7) P(8) P(9) P(10) P(11) P(12) P(13) P(14) P(15)

static void spin(enum how how, long length)
{
	if (how == ZA) {
		__asm__ volatile(".arch armv8-a+sve+sme\n\tsmstart za\n\tmov w12, #0\n\tmov x13, %0\n"
				 "1:\tldr za[w12, 0], [x13]\n\tadd x13, x13, %1\n\tadd w12, w12, #1\n\t"
				 "cmp x12, %1\n\tb.lt 1b" : : "r"(text), "r"(length)
				 : "x12", "x13", "cc", "memory");
		for (;;)
			syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	}
	if (how == STREAMING)
		__asm__ volatile(".arch armv8-a+sve+sme\n\tsmstart sm\n\t" REGISTERS "1:\tb 1b"
				 : : "r"(text) : "memory");
	__asm__ volatile(".arch armv8-a+sve\n\tldr p0, [%0]\n\twrffr p0.b\n\t" REGISTERS "1:\tb 1b"
			 : : "r"(text) : "memory");
}

int main(void)
{
	const int is_capable[] = { 1, 1, !!(getauxval(AT_HWCAP2) & SME), !!(getauxval(AT_HWCAP2) & SME) };
	volatile int *ready = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char piece[17];
	size_t i;

	if (!(getauxval(AT_HWCAP) & SVE) || ready == MAP_FAILED)
		return 1;
	for (i = 0; i < sizeof(processes) / sizeof(*processes); i++) {
		enum how how = processes[i].how;
		int option = how == ZA || how == STREAMING ? PR_SME_SET_VL : PR_SVE_SET_VL, at;
		pid_t pid;

		if (!is_capable[how])
			continue;
		*ready = 0;
		pid = fork();
		if (pid < 0)
			return 1;
		if (!pid) {
			if (prctl(option, processes[i].length, 0, 0, 0) < 0)
				return 1;
			for (at = 0; at < (int)sizeof(text); at += 16) {
				snprintf(piece, sizeof(piece), "kCq!%03zu.%06d..", i, at / 16);
				memcpy(text + at, piece, 16);
			}
			*ready = 1;
			spin(how, processes[i].length);
		}
		while (!*ready)
			usleep(10000);
		usleep(300000);
		if ((how == STOPPED || how == STREAMING) && kill(pid, SIGSTOP) < 0)
			return 1;
	}
	return 0;
}
