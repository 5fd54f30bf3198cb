// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Processes that fill a memory cgroup. "memory-load ROLE CGROUP COUNT MIB" starts COUNT of them,
 * and returns once each has MIB of memory. They want more once there is a file /start, and go on
 * until the guest ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES_PER_MIB 256

static int not_ready[2];

static void die(const char *what)
{
	fprintf(stderr, "memory-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void join(const char *cgroup)
{
	char path[256];
	int file;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, "0", 1) != 1)
		die(path);
	close(file);
}

static void take_anonymous(long pages)
{
	char *start = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		die("mmap");
	for (long page = 0; page < pages; page++)
		start[page * PAGE] = 'k';
}

static void take_shared(long pages)
{
	static char content[PAGE];
	static int file = -1;

	if (file < 0)
		file = memfd_create("shared", 0);
	while (pages-- > 0)
		if (write(file, content, PAGE) != PAGE)
			die("memfd");
}

static const struct role {
	const char *name;
	void (*take)(long pages);
} roles[] = {
	{"anonymous", take_anonymous},
	{"shared", take_shared},
};

static void fill(const struct role *role, const char *cgroup, long mib)
{
	close(not_ready[0]);
	join(cgroup);
	role->take(mib * PAGES_PER_MIB);
	close(not_ready[1]);
	while (access("/start", F_OK) < 0)
		usleep(10000);
	for (;; usleep(3000))
		role->take(1);
}

int main(int argc, char **argv)
{
	char byte;

	for (size_t i = 0; argc == 5 && i < sizeof(roles) / sizeof(roles[0]); i++) {
		if (strcmp(roles[i].name, argv[1]) != 0)
			continue;
		if (pipe(not_ready) < 0)
			die("pipe");
		for (int count = atoi(argv[3]); count > 0; count--) {
			if (fork() > 0)
				continue;
			prctl(PR_SET_NAME, roles[i].name);
			fill(&roles[i], argv[2], atol(argv[4]));
		}
		close(not_ready[1]);
		return read(not_ready[0], &byte, 1) < 0;
	}
	return 2;
}
