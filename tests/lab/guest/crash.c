// SPDX-License-Identifier: LGPL-2.1-or-later
/* A crash and, in the kernel that takes over, the plain copy of the crashed one's memory. */
#define _GNU_SOURCE
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 4096
#define CHUNK (256 * BLOCK)

static int sysrq = -1;

void crash_load(const char *kernel, const char *initrd, const char *command_line)
{
	int kernel_file = open(kernel, O_RDONLY), initrd_file = open(initrd, O_RDONLY);

	if (kernel_file < 0 || initrd_file < 0)
		fail("open %s, %s: %s", kernel, initrd, strerror(errno));
	if (syscall(SYS_kexec_file_load, kernel_file, initrd_file, strlen(command_line) + 1,
		    command_line, KEXEC_FILE_ON_CRASH) < 0)
		fail("kexec_file_load: %s", strerror(errno));
	close(kernel_file);
	close(initrd_file);
	/* They were only there to be loaded, and take memory in the root file system. */
	unlink(kernel);
	unlink(initrd);
}

/* Opened early: looking up the path would change what has just been counted. */
void crash_prepare(void)
{
	sysrq = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
	if (sysrq < 0)
		fail("open /proc/sysrq-trigger: %s", strerror(errno));
}

void crash_now(void)
{
	if (write(sysrq, "c", 1) != 1)
		fail("sysrq-trigger: %s", strerror(errno));
}

/* The device is all zeroes before: blocks of zeroes stay holes in the host's file. */
void copy_sparse(const char *source, const char *device)
{
	static const char zeroes[BLOCK];
	int in = open(source, O_RDONLY), out = open(device, O_WRONLY);
	char *chunk = aligned_alloc(BLOCK, CHUNK);
	off_t at = 0;

	if (in < 0 || out < 0)
		fail("open %s, %s: %s", source, device, strerror(errno));
	for (;;) {
		size_t length = 0;
		ssize_t got;

		while (length < CHUNK && (got = read(in, chunk + length, CHUNK - length)) != 0) {
			if (got < 0)
				fail("read %s: %s", source, strerror(errno));
			length += (size_t)got;
		}
		for (size_t i = 0; i < length; i += BLOCK) {
			size_t size = length - i < BLOCK ? length - i : BLOCK;

			if (memcmp(chunk + i, zeroes, size) != 0 &&
			    pwrite(out, chunk + i, size, at + (off_t)i) != (ssize_t)size)
				fail("write %s: %s", device, strerror(errno));
		}
		at += (off_t)length;
		if (length < CHUNK)
			break;
	}
	if (fsync(out) < 0)
		fail("fsync %s: %s", device, strerror(errno));
	note_begin("copy");
	note_text("device", device);
	note_number("bytes", at);
	note_end();
	free(chunk);
	close(in);
	close(out);
}
