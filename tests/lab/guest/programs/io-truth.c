// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * What the kernel says about the disks and about the tasks in D state, as many files in one:
 * "FILE PATH LENGTH", a newline and the content, one after the other.
 *
 * "io-truth disks": all that debugfs and sysfs have on the queues of the disks, with the clocks.
 * "io-truth tasks": the stacks of the tasks in D state, with names and states.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void emit(const char *path)
{
	static char content[1 << 18];
	size_t length = 0;
	ssize_t got;
	int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (file < 0)
		return;
	while ((got = read(file, content + length, sizeof(content) - length)) > 0)
		length += (size_t)got;
	close(file);
	/* Some attributes exist, and cannot be read. */
	if (got < 0)
		return;
	printf("FILE %s %zu\n", path, length);
	fwrite(content, 1, length, stdout);
}

static void emit_tree(const char *path)
{
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		char inner[PATH_MAX];
		struct stat status;
		const char *name = entries[i]->d_name;

		/* Reading blktrace's own files would take its events away. */
		if (name[0] == '.' || !strncmp(name, "trace", 5) || !strcmp(name, "msg"))
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, name);
		if (lstat(inner, &status) < 0)
			continue;
		if (S_ISDIR(status.st_mode))
			emit_tree(inner);
		else if (S_ISREG(status.st_mode))
			emit(inner);
	}
}

static void emit_clocks(void)
{
	char text[256];
	struct timespec monotonic, boot, real;
	int length;

	clock_gettime(CLOCK_MONOTONIC, &monotonic);
	clock_gettime(CLOCK_BOOTTIME, &boot);
	clock_gettime(CLOCK_REALTIME, &real);
	length = sprintf(text, "monotonic %lld.%09ld\nboottime %lld.%09ld\nrealtime %lld.%09ld\n",
			 (long long)monotonic.tv_sec, monotonic.tv_nsec, (long long)boot.tv_sec,
			 boot.tv_nsec, (long long)real.tv_sec, real.tv_nsec);
	printf("FILE clocks %d\n%s", length, text);
}

/* The disk that the traces go to is no part of the scenario. */
static const char trace_disk[] = "vdb";

static void disk(const char *name)
{
	static const char *const trees[] = {"/sys/kernel/debug/block/%s", "/sys/block/%s/queue"};
	static const char *const files[] = {"/sys/block/%s/inflight", "/sys/block/%s/stat",
					    "/sys/block/%s/dev", "/sys/block/%s/size"};
	char path[PATH_MAX];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), files[i], name);
		emit(path);
	}
	for (size_t i = 0; i < sizeof(trees) / sizeof(trees[0]); i++) {
		snprintf(path, sizeof(path), trees[i], name);
		emit_tree(path);
	}
}

static bool has_sectors(const char *name)
{
	char path[PATH_MAX], text[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/block/%s/size", name);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	return atoll(text) > 0;
}

static void disks(void)
{
	struct dirent **entries;
	int count = scandir("/sys/block", &entries, NULL, versionsort);

	emit_clocks();
	emit("/proc/diskstats");
	for (int i = 0; i < count; i++) {
		const char *name = entries[i]->d_name;

		if (name[0] != '.' && strcmp(name, trace_disk) != 0 && has_sectors(name))
			disk(name);
	}
}

static char state_of(const char *task)
{
	char path[PATH_MAX], line[1024] = "";
	const char *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/stat", task);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	fclose(file);
	end = strrchr(line, ')');
	return end && end[1] ? end[2] : 0;
}

static void tasks(void)
{
	static const char *const files[] = {"comm", "wchan", "stack", "status"};
	struct dirent **entries;
	int count = scandir("/proc", &entries, NULL, versionsort);

	emit_clocks();
	for (int i = 0; i < count; i++) {
		const char *name = entries[i]->d_name;

		if (name[0] < '0' || name[0] > '9' || state_of(name) != 'D')
			continue;
		for (size_t j = 0; j < sizeof(files) / sizeof(files[0]); j++) {
			char path[PATH_MAX];

			snprintf(path, sizeof(path), "/proc/%s/%s", name, files[j]);
			emit(path);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "disks"))
		disks();
	else if (argc == 2 && !strcmp(argv[1], "tasks"))
		tasks();
	else
		return 2;
	return 0;
}
