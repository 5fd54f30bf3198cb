// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Programs that dump core, and readers of their dumps. "core-load ROLE [ARGUMENT...]" starts one
 * and returns; a reader, which the kernel starts, is the process itself.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096

static void die(const char *what)
{
	fprintf(stderr, "core-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int open_file(const char *path, int flags)
{
	int file = open(path, flags | O_CLOEXEC, 0644);

	if (file < 0)
		die(path);
	return file;
}

/* What a dump of core has of this process. */
enum { ANONYMOUS_PRIVATE = 1 << 0, MAPPED_SHARED = 1 << 3 };

static void set_core_filter(int filter)
{
	int file = open_file("/proc/self/coredump_filter", O_WRONLY);
	char text[16];

	if (write(file, text, (size_t)sprintf(text, "%#x", filter)) < 0)
		die("coredump_filter");
	close(file);
}

static void wait_forever(void)
{
	for (;;)
		pause();
}

/* Dumps core, which consists of a mapping of this file: more than fits in a pipe. */
static void crash_with(char **path)
{
	/* A file that is open for reading only has no shared mappings. */
	int file = open_file(path[0], O_RDWR);

	if (mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED)
		die(path[0]);
	set_core_filter(MAPPED_SHARED);
	abort();
}

static void *thread(void *unused)
{
	(void)unused;
	wait_forever();
	return NULL;
}

/* Dumps core, with more threads. */
static void crash_threads(char **count)
{
	pthread_t ids[64];

	for (int i = 0; i < atoi(count[0]); i++)
		if (pthread_create(&ids[i], NULL, thread, NULL))
			die("pthread_create");
	memset(mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	       'k', 64 * PAGE);
	set_core_filter(ANONYMOUS_PRIVATE);
	sleep(1);
	abort();
}

/* Reads a core dump, or would, if this file could be read first. */
static void core_reader(char **path)
{
	char byte;
	int file = open_file(path[0], O_RDONLY);

	if (read(file, &byte, 1) < 0)
		die(path[0]);
	wait_forever();
}

static void core_sleeper(char **unused)
{
	(void)unused;
	wait_forever();
}

static const struct role {
	const char *name;
	void (*function)(char **arguments);
	int arguments;
	bool is_in_place; /* the process itself, because the kernel has started it */
} roles[] = {
	{"crash-with", crash_with, 1, false},
	{"crash-threads", crash_threads, 1, false},
	{"core-reader", core_reader, 1, true},
	{"core-sleeper", core_sleeper, 0, true},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(roles) / sizeof(roles[0]); i++) {
		const struct role *role = &roles[i];

		if (strcmp(role->name, argv[1]) != 0 || argc - 2 < role->arguments)
			continue;
		if (!role->is_in_place && fork() > 0)
			return 0;
		prctl(PR_SET_NAME, role->name);
		role->function(argv + 2);
		return 0;
	}
	return 2;
}
