/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The three functions of <sys/io.h> that the guest's program calls, for machines without ports:
 * what it sends goes to a port of virtio (Z), or to a terminal of the hypervisor (POWER).
 *
 * That takes system calls, also between the last read and the dump. They allocate nothing that
 * stays. Bytes go out when a line ends or the burst is full.
 */
#ifndef LAB_TERMINAL_SYS_IO_H
#define LAB_TERMINAL_SYS_IO_H

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#define __builtin_ia32_pause() __asm__ volatile("" ::: "memory")

static int lab_port = -1;
static unsigned char lab_burst[64];
static size_t lab_held;

static inline int ioperm(unsigned long from, unsigned long count, int on)
{
	static const char *const names[] = {"/dev/vport0p1", "/dev/vport1p1", "/dev/vport2p1",
					    "/dev/hvc1"};
	struct termios raw;

	(void)from, (void)count, (void)on;
	mkdir("/dev", 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	for (int tries = 0; lab_port < 0 && tries < 100; tries++) {
		for (size_t i = 0; lab_port < 0 && i < sizeof(names) / sizeof(*names); i++)
			lab_port = open(names[i], O_RDWR | O_NOCTTY | O_CLOEXEC);
		usleep(100000);
	}
	if (lab_port >= 0 && tcgetattr(lab_port, &raw) == 0) {
		cfmakeraw(&raw);
		tcsetattr(lab_port, TCSANOW, &raw);
	}
	return lab_port < 0 ? -1 : 0;
}

static inline void lab_flush(void)
{
	size_t done = 0;

	while (done < lab_held) {
		ssize_t wrote = write(lab_port, lab_burst + done, lab_held - done);

		if (wrote > 0)
			done += (size_t)wrote;
	}
	lab_held = 0;
}

static inline void outb(unsigned char value, unsigned short port)
{
	if (port & 7) /* a register of the UART */
		return;
	lab_burst[lab_held++] = value;
	if (value == '\n' || lab_held == sizeof(lab_burst))
		lab_flush();
}

static inline unsigned char inb(unsigned short port)
{
	struct pollfd ready = {.fd = lab_port, .events = POLLIN};
	unsigned char byte = 0;

	if (port & 7)
		return 0x20 | (poll(&ready, 1, 0) > 0 && ready.revents & POLLIN ? 0x01 : 0);
	if (read(lab_port, &byte, 1) < 0)
		return 0;
	return byte;
}

#endif
