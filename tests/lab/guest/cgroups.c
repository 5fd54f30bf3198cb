// SPDX-License-Identifier: LGPL-2.1-or-later
/* Memory cgroups that live, die, or come and go. */
#define _GNU_SOURCE
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_of(char *path, const char *name, const char *file)
{
	if (snprintf(path, PATH_MAX, CGROUPS "/%s%s", name, file) >= PATH_MAX)
		fail("cgroup name too long: %s", name);
}

/* Makes the cgroup and its missing ancestors, each with the memory controller. */
void cgroup_make(const char *name)
{
	char path[PATH_MAX], control[PATH_MAX];
	const char *end = name;
	struct stat st;

	while (*end) {
		size_t parent = (size_t)(end - name);

		end = strchrnul(end + (*end == '/'), '/');
		snprintf(control, sizeof(control), CGROUPS "/%.*s/cgroup.subtree_control",
			 (int)parent, name);
		write_text(control, "+memory");
		snprintf(path, sizeof(path), CGROUPS "/%.*s", (int)(end - name), name);
		if (mkdir(path, 0755) < 0) {
			if (errno == EEXIST)
				continue;
			fail("mkdir %s: %s", path, strerror(errno));
		}
		if (stat(path, &st) < 0)
			fail("stat %s: %s", path, strerror(errno));
		note_begin("memcg");
		note_text("path", path + strlen(CGROUPS));
		note_number("id", (long)st.st_ino);
		note_end();
	}
}

void cgroup_join(const char *name)
{
	char path[PATH_MAX];

	path_of(path, name, "/cgroup.procs");
	write_text(path, "0");
	note_memcg(name);
}

/* Removes the cgroup, then every ancestor that it leaves empty. */
void cgroup_remove(const char *name)
{
	char left[PATH_MAX], path[PATH_MAX];
	int tries = 0;

	snprintf(left, sizeof(left), "%s", name);
	for (;;) {
		char *slash = strrchr(left, '/');

		path_of(path, left, "");
		if (rmdir(path) < 0) {
			/* The last process is gone but still being accounted for. */
			if (errno == EBUSY && !strcmp(left, name) && tries++ < 100) {
				usleep(10000);
				continue;
			}
			if (errno == EBUSY && strcmp(left, name))
				return;
			fail("rmdir %s: %s", path, strerror(errno));
		}
		note_begin("rmcgroup");
		note_text("path", path + strlen(CGROUPS));
		note_end();
		if (!slash)
			return;
		*slash = '\0';
	}
}

static void churn_files(const char *directory, int cpu, unsigned long round)
{
	char inner[PATH_MAX], path[PATH_MAX + 64];
	struct stat st;

	/* What is in here is gone for good at the end of the round, the missing names too. */
	snprintf(inner, sizeof(inner), "%s/%d-%lu", directory, cpu, round % 50);
	if (mkdir(inner, 0755) < 0)
		fail("mkdir %s: %s", inner, strerror(errno));
	for (unsigned long i = 0; i < 40; i++) {
		bool stays = i % 8 == 0;
		int file;

		if (stays)
			snprintf(path, sizeof(path), "%s/%d-file-%lu", directory, cpu,
				 (round + i) % 200);
		else
			snprintf(path, sizeof(path), "%s/file-%lu", inner, i);
		file = open(path, O_CREAT | O_RDWR, 0644);
		if (file < 0 || write(file, path, sizeof(path)) < 0)
			fail("create %s: %s", path, strerror(errno));
		close(file);
		if (!stays && unlink(path) < 0)
			fail("unlink %s: %s", path, strerror(errno));
	}
	for (unsigned long i = 0; i < 50; i++) {
		snprintf(path, sizeof(path), "%s/missing-%lu", i % 5 ? inner : directory,
			 (round * 50 + i) % 50000);
		stat(path, &st);
	}
	if (rmdir(inner) < 0)
		fail("rmdir %s: %s", inner, strerror(errno));
}

static void churn_pipes(void)
{
	static char content[3000];
	int ends[2];

	for (int i = 0; i < 4; i++) {
		if (pipe(ends) < 0 || write(ends[1], content, sizeof(content)) < 0)
			fail("pipe: %s", strerror(errno));
		close(ends[0]);
		close(ends[1]);
	}
}

static void churn_round(const char *directory, int cpu, unsigned long round)
{
	char path[PATH_MAX], name[64];

	snprintf(name, sizeof(name), "churn-%d-%lu", cpu, round % 50);
	path_of(path, name, "");
	if (mkdir(path, 0755) < 0)
		fail("mkdir %s: %s", path, strerror(errno));
	cgroup_join(name);
	churn_files(directory, cpu, round);
	churn_pipes();
	write_text(CGROUPS "/cgroup.procs", "0");
	if (rmdir(path) < 0)
		fail("rmdir %s: %s", path, strerror(errno));
}

/* One process on every CPU that creates and deletes until the guest is killed. */
void churn(const char *directory)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	make_directories(directory);
	for (int cpu = 0; cpu < cpus; cpu++) {
		if (fork() != 0)
			continue;
		pin(cpu);
		for (unsigned long round = 0;; round++)
			churn_round(directory, cpu, round);
	}
	note_begin("churn");
	note_text("dir", directory);
	note_end();
}
