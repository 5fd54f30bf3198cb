// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Processes that keep a disk busy. "io-load ROLE PATH COUNT [CLASS [LEVEL]]" starts COUNT of
 * them and returns; they run until the guest ends.
 *
 * CLASS is rt, be or idle, LEVEL 0 to 7: the I/O priority of the processes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 4096
#define CHUNK (1 << 20)
#define DIRECTORIES 8
#define NAMES 256
#define CLASS_SHIFT 13
#define WHO_PROCESS 1

static char buffer[CHUNK] __attribute__((aligned(BLOCK)));
static uint64_t state;

static void die(const char *what)
{
	fprintf(stderr, "io-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static uint64_t random_below(uint64_t bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % bound;
}

static int open_file(const char *path, int flags)
{
	int file = open(path, flags | O_CLOEXEC, 0644);

	if (file < 0)
		die(path);
	return file;
}

static uint64_t blocks_of(int file)
{
	off_t end = lseek(file, 0, SEEK_END);

	if (end < BLOCK)
		die("size");
	return (uint64_t)end / BLOCK;
}

static void direct(const char *path, int flags)
{
	int file = open_file(path, flags | O_DIRECT);
	uint64_t blocks = blocks_of(file);

	for (;;) {
		off_t at = (off_t)(random_below(blocks) * BLOCK);
		ssize_t done = flags == O_RDONLY ? pread(file, buffer, BLOCK, at)
						 : pwrite(file, buffer, BLOCK, at);

		if (done != BLOCK)
			die(path);
	}
}

static void direct_read(const char *path)
{
	direct(path, O_RDONLY);
}

static void direct_write(const char *path)
{
	direct(path, O_WRONLY);
}

static void buffered_write(const char *path)
{
	int file = open_file(path, O_WRONLY);
	uint64_t blocks = blocks_of(file);

	for (;;) {
		if (pwrite(file, buffer, BLOCK, (off_t)(random_below(blocks) * BLOCK)) != BLOCK)
			die(path);
		usleep(1000);
	}
}

static void buffered_read(const char *path)
{
	int file = open_file(path, O_RDONLY);
	uint64_t blocks = blocks_of(file);

	for (;;)
		if (pread(file, buffer, BLOCK, (off_t)(random_below(blocks) * BLOCK)) != BLOCK)
			die(path);
}

static void name_in(char *out, const char *directory, int number, char kind)
{
	/* Long names, so that the directories have many blocks. */
	sprintf(out, "%s/%d/%c%0*d", directory, number, kind, 90, (int)random_below(NAMES));
}

/* Renames files there and back, and now and then syncs one. */
static void rename_files(const char *directory)
{
	char from[512], to[512];

	for (unsigned long i = 1;; i++) {
		name_in(from, directory, (int)random_below(DIRECTORIES), 'a');
		strcpy(to, from);
		*(strrchr(to, '/') + 1) = 'b';
		if (rename(from, to) < 0 && rename(to, from) < 0 && errno != ENOENT)
			die(from);
		if (i % 16 == 0) {
			int file = open(to, O_RDONLY | O_CLOEXEC);

			if (file >= 0) {
				fsync(file);
				close(file);
			}
		}
		usleep(2000);
	}
}

/* Opens files, most of which the cache of dentries has forgotten. */
static void look_up_in(const char *directory, unsigned directories)
{
	char path[512];

	for (;;) {
		int file;

		name_in(path, directory, (int)random_below(directories),
			random_below(2) ? 'a' : 'b');
		file = open(path, O_RDONLY | O_CLOEXEC);
		if (file >= 0)
			close(file);
		usleep(1000);
	}
}

static void look_up(const char *directory)
{
	look_up_in(directory, DIRECTORIES);
}

/* All in one directory, so that they need the same blocks at the same time. */
static void look_up_one(const char *directory)
{
	look_up_in(directory, 1);
}

static void drop_caches(const char *path)
{
	for (;;) {
		int file = open_file(path, O_WRONLY);

		if (write(file, "2", 1) != 1)
			die(path);
		close(file);
		usleep(300000);
	}
}

/* Makes a file of COUNT MiB whose blocks are all on the disk. */
static void make_file(const char *path, int count)
{
	int file = open_file(path, O_WRONLY | O_CREAT | O_DIRECT);

	memset(buffer, 'k', sizeof(buffer));
	for (int i = 0; i < count; i++)
		if (write(file, buffer, CHUNK) != CHUNK)
			die(path);
	if (fsync(file) < 0)
		die(path);
}

/* Makes the directories that rename-files and look-up use. */
static void make_names(const char *directory)
{
	char path[512];

	if (mkdir(directory, 0755) < 0)
		die(directory);
	for (int i = 0; i < DIRECTORIES; i++) {
		sprintf(path, "%s/%d", directory, i);
		if (mkdir(path, 0755) < 0)
			die(path);
		for (int j = 0; j < NAMES; j++) {
			sprintf(path, "%s/%d/a%0*d", directory, i, 90, j);
			close(open_file(path, O_WRONLY | O_CREAT));
		}
	}
}

static const struct role {
	const char *name;
	void (*run)(const char *path);
} roles[] = {
	{"direct-read", direct_read},	  {"direct-write", direct_write},
	{"buffered-read", buffered_read}, {"buffered-write", buffered_write},
	{"rename", rename_files},	  {"look-up", look_up},
	{"look-up-one", look_up_one},	  {"drop-caches", drop_caches},
};

static void set_priority(const char *class, int level)
{
	int number = !strcmp(class, "rt") ? 1 : !strcmp(class, "be") ? 2 : 3;

	if (syscall(SYS_ioprio_set, WHO_PROCESS, 0, number << CLASS_SHIFT | level) < 0)
		die("ioprio_set");
}

int main(int argc, char **argv)
{
	const struct role *role = roles;
	int count;

	if (argc < 4)
		return 2;
	count = atoi(argv[3]);
	if (!strcmp(argv[1], "make-file")) {
		make_file(argv[2], count);
		return 0;
	}
	if (!strcmp(argv[1], "make-names")) {
		make_names(argv[2]);
		return 0;
	}
	while (strcmp(role->name, argv[1]) != 0)
		if (++role == roles + sizeof(roles) / sizeof(roles[0]))
			return 2;
	if (argc > 4)
		set_priority(argv[4], argc > 5 ? atoi(argv[5]) : 0);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (child == 0) {
			state = 88172645463325252ULL + (uint64_t)getpid() * 2654435761ULL;
			prctl(PR_SET_NAME, role->name);
			role->run(argv[2]);
		}
	}
	return 0;
}
