// SPDX-License-Identifier: LGPL-2.1-or-later
/* Many files, or many names that do not exist. */
#define _GNU_SOURCE
#include "lab.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARALLEL_FROM 50000

/* Looks random, but no two numbers give the same digits: the counts stay exact. */
static uint64_t scatter_bits(uint64_t number, unsigned int bits)
{
	uint64_t mask = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;

	number = ((number + 0x2545f491) * UINT64_C(0x9e3779b97f4a7c15)) & mask;
	number ^= number >> (bits / 2);
	number = (number * UINT64_C(0xd6e8feb86659fd93)) & mask;
	return number ^ number >> (bits / 2);
}

static size_t alphanumeric(char *out, unsigned int width, uint64_t number)
{
	static const char digits[] =
		"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	uint64_t range = 1;

	for (unsigned int i = 0; i < width; i++)
		range *= 62;
	/* 2654435761 is prime, so multiplication permutes the range. */
	for (int i = 0; i < 3; i++)
		number = (uint64_t)((unsigned __int128)(number + 0x2545f491) * 2654435761u % range);
	for (unsigned int i = 0; i < width; i++, number /= 62)
		out[i] = digits[number % 62];
	return width;
}

/*
 * {d} the number, {d8} eight digits of it, {x16} sixteen scattered hexadecimal digits,
 * {a6} six scattered letters and digits; at most ten of the last.
 */
size_t expand(char *out, size_t size, const char *pattern, unsigned long number)
{
	size_t length = 0;

	while (*pattern && length + 40 < size) {
		char kind = pattern[1];
		char *end;
		unsigned int width;

		if (*pattern != '{' || !kind || !strchr("dxa", kind)) {
			out[length++] = *pattern++;
			continue;
		}
		width = (unsigned int)strtoul(pattern + 2, &end, 10);
		if (*end != '}' || width > (kind == 'a' ? 10 : 16))
			fail("bad name pattern: %s", pattern);
		pattern = end + 1;
		if (kind == 'd')
			length += (size_t)sprintf(out + length, "%0*lu", (int)width, number);
		else if (kind == 'x')
			length += (size_t)sprintf(out + length, "%0*llx", (int)width,
						  (unsigned long long)scatter_bits(number, width * 4));
		else
			length += alphanumeric(out + length, width, number);
	}
	out[length] = '\0';
	return length;
}

static int open_directory(const char *path)
{
	int directory;

	make_directories(path);
	directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		fail("open %s: %s", path, strerror(errno));
	return directory;
}

static void note(const char *action, char **arg, int directory, long made)
{
	struct statfs fs;
	char type[32];

	if (fstatfs(directory, &fs) < 0)
		fail("statfs %s: %s", arg[0], strerror(errno));
	switch (fs.f_type) {
	case 0x58465342:
		strcpy(type, "xfs");
		break;
	case 0x01021994:
		strcpy(type, "tmpfs");
		break;
	default:
		sprintf(type, "%lx", (unsigned long)fs.f_type);
	}
	note_begin(action);
	note_text("dir", arg[0]);
	note_text("pattern", arg[1]);
	note_text("fs", type);
	note_number("count", made);
	note_end();
}

/* DIR PATTERN FIRST COUNT SIZE */
void files(char **arg)
{
	unsigned long first = strtoul(arg[2], NULL, 10), count = strtoul(arg[3], NULL, 10);
	size_t size = strtoul(arg[4], NULL, 10);
	int directory = open_directory(arg[0]);
	char *content = malloc(size + 1);
	char name[512];

	memset(content, 'k', size);
	for (unsigned long i = first; i < first + count; i++) {
		int file;

		expand(name, sizeof(name), arg[1], i);
		file = openat(directory, name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (file < 0 || write(file, content, size) != (ssize_t)size)
			fail("create %s/%s: %s", arg[0], name, strerror(errno));
		close(file);
	}
	free(content);
	note("files", arg, directory, (long)count);
	close(directory);
}

static void look_up(int directory, const char *pattern, unsigned long first, unsigned long end)
{
	char name[512];
	struct stat st;

	for (unsigned long i = first; i < end; i++) {
		expand(name, sizeof(name), pattern, i);
		if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
			fail("%s ought to be missing: %s", name, strerror(errno));
	}
}

/* DIR PATTERN FIRST COUNT; a large count is shared out among the CPUs. */
void missing(char **arg)
{
	unsigned long first = strtoul(arg[2], NULL, 10), count = strtoul(arg[3], NULL, 10);
	unsigned long cpus = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN);
	int directory = open_directory(arg[0]);

	if (count < PARALLEL_FROM) {
		look_up(directory, arg[1], first, first + count);
	} else {
		for (unsigned long cpu = 0; cpu < cpus; cpu++) {
			if (fork() != 0)
				continue;
			pin((int)cpu);
			look_up(directory, arg[1], first + count * cpu / cpus,
				first + count * (cpu + 1) / cpus);
			_exit(0);
		}
		for (unsigned long cpu = 0; cpu < cpus; cpu++)
			wait(NULL);
	}
	note("missing", arg, directory, (long)count);
	close(directory);
}

/* DIR PATTERN FIRST COUNT KEEP: one file in KEEP stays, none if KEEP is 0. */
void remove_files(char **arg)
{
	unsigned long first = strtoul(arg[2], NULL, 10), count = strtoul(arg[3], NULL, 10);
	unsigned long keep = strtoul(arg[4], NULL, 10);
	int directory = open_directory(arg[0]);
	long removed = 0;
	char name[512];

	for (unsigned long i = first; i < first + count; i++) {
		if (keep && i % keep == 0)
			continue;
		expand(name, sizeof(name), arg[1], i);
		if (unlinkat(directory, name, 0) < 0)
			fail("unlink %s/%s: %s", arg[0], name, strerror(errno));
		removed++;
	}
	note("remove", arg, directory, removed);
	close(directory);
}

/* DIR PATTERN FIRST COUNT: opens the files and never closes them. */
void hold(char **arg)
{
	unsigned long first = strtoul(arg[2], NULL, 10), count = strtoul(arg[3], NULL, 10);
	int directory = open_directory(arg[0]);
	char name[512];

	for (unsigned long i = first; i < first + count; i++) {
		expand(name, sizeof(name), arg[1], i);
		if (openat(directory, name, O_RDWR) < 0)
			fail("open %s/%s: %s", arg[0], name, strerror(errno));
	}
	note("hold", arg, directory, (long)count);
	close(directory);
}
