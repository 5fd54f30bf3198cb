// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * "page-load PATH MIB" starts a process that overwrites a file of so many MiB through the page
 * cache, from its start to its end, again and again until the guest ends; and returns.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char chunk[1 << 16];

int main(int count, char **arguments)
{
	int file;
	off_t size;

	if (count != 3)
		return 2;
	file = open(arguments[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (file < 0) {
		perror(arguments[1]);
		return 1;
	}
	size = atol(arguments[2]) << 20;
	if (fork())
		return 0;
	for (;;)
		for (off_t at = 0; at < size; at += sizeof(chunk))
			if (pwrite(file, chunk, sizeof(chunk), at) != sizeof(chunk))
				_exit(1);
}
