// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * What the kernel says about its tasks.
 *
 * "wait-truth tasks": names, states and stacks of all tasks, threads included, as many files in
 * one: "FILE PATH LENGTH", a newline and the content, one after the other.
 * "wait-truth log": the kernel log, after the kernel has listed in it what its CPUs do, and then
 * its tasks in D state.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <time.h>
#include <unistd.h>

#define READ_ALL 3
/* The guest keeps no file that is larger than 1 MiB. */
#define LOG_BYTES ((1 << 20) - 4096)

static void emit_content(const char *path, const char *content, size_t length)
{
	printf("FILE %s %zu\n", path, length);
	fwrite(content, 1, length, stdout);
}

static void emit(const char *path)
{
	static char content[1 << 16];
	size_t length = 0;
	ssize_t got;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return;
	while ((got = read(file, content + length, sizeof(content) - length)) > 0)
		length += (size_t)got;
	close(file);
	/* The task may have ended. */
	if (got == 0)
		emit_content(path, content, length);
}

static int numbers_in(const char *directory, struct dirent ***entries)
{
	int count = scandir(directory, entries, NULL, versionsort), kept = 0;

	for (int i = 0; i < count; i++)
		if ((*entries)[i]->d_name[0] >= '0' && (*entries)[i]->d_name[0] <= '9')
			(*entries)[kept++] = (*entries)[i];
	return kept;
}

static void tasks(void)
{
	static const char *const files[] = {"comm", "stat", "wchan", "stack"};
	struct dirent **processes, **threads;
	struct timespec now;
	char path[PATH_MAX];
	int count = numbers_in("/proc", &processes);

	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(path, sizeof(path), "%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
	emit_content("monotonic", path, strlen(path));
	for (int i = 0; i < count; i++) {
		int inner;

		snprintf(path, sizeof(path), "/proc/%s/task", processes[i]->d_name);
		inner = numbers_in(path, &threads);
		for (int j = 0; j < inner; j++) {
			for (size_t k = 0; k < sizeof(files) / sizeof(files[0]); k++) {
				snprintf(path, sizeof(path), "/proc/%s/task/%s/%s",
					 processes[i]->d_name, threads[j]->d_name, files[k]);
				emit(path);
			}
		}
	}
}

static void kernel_log(void)
{
	char *content = malloc(LOG_BYTES);
	int file = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC), length;

	/* Of what is written at once, some kernels read one letter. */
	if (file < 0 || write(file, "l", 1) != 1 || write(file, "w", 1) != 1)
		exit(1);
	length = klogctl(READ_ALL, content, LOG_BYTES);
	if (length < 0)
		exit(1);
	fwrite(content, 1, (size_t)length, stdout);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "tasks"))
		tasks();
	else if (argc == 2 && !strcmp(argv[1], "log"))
		kernel_log();
	else
		return 2;
	return 0;
}
