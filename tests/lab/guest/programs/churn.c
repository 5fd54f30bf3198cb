// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Endless load for guests with Debian: "churn ROLE DIRECTORY [CGROUP]" runs until it is killed. It
 * leaves most of an emulated CPU to those who look at the kernel.
 *
 * files       creates, writes, looks up and removes files, and opens pipes
 * containers  makes memory cgroups in CGROUP with a tmpfs each, uses them, and removes both
 * disk        reads, overwrites and syncs files that are larger than the page cache gets
 * copies      overwrites each chunk of a device once, and ends; no two at once are neighbours, which
 *             a snapshot would count as one
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1 << 20)
#define PAUSE 20000 /* microseconds */
#define CHUNK 4096
#define CHUNKS (48UL * MIB / CHUNK)

static char content[64 * 1024] __attribute__((aligned(CHUNK)));

static void die(const char *what)
{
	fprintf(stderr, "churn: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void make_directory(const char *path)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		die(path);
}

static void create(const char *path, size_t size)
{
	int file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	if (file < 0 || write(file, content, size) < 0)
		die(path);
	close(file);
}

static void use_pipe(void)
{
	int ends[2];

	if (pipe(ends) < 0 || write(ends[1], content, 3000) < 0)
		die("pipe");
	close(ends[0]);
	close(ends[1]);
}

static void use_files(const char *directory, unsigned long round)
{
	char path[PATH_MAX];
	struct stat status;

	for (unsigned long i = 0; i < 40; i++) {
		snprintf(path, sizeof(path), "%s/file-%lu", directory, (round + i) % 400);
		create(path, 100);
		use_pipe();
		snprintf(path, sizeof(path), "%s/file-%lu", directory, (round + 7 * i) % 400);
		unlink(path);
		snprintf(path, sizeof(path), "%s/missing-%lu", directory, (round * 40 + i) % 20000);
		stat(path, &status);
	}
}

static void write_text(const char *directory, const char *name, const char *text)
{
	char path[PATH_MAX + 64];
	int file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, text, strlen(text)) < 0)
		die(path);
	close(file);
}

/* A process moves into the cgroup, so that what it allocates is charged to it. */
static void use_container(const char *directory, const char *cgroup)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (!child) {
		write_text(cgroup, "cgroup.procs", "0");
		if (mount("tmpfs", directory, "tmpfs", 0, "size=4m") < 0)
			die(directory);
		use_files(directory, 0);
		if (umount2(directory, MNT_DETACH) < 0)
			die(directory);
		_exit(0);
	}
	if (waitpid(child, &status, 0) < 0 || status)
		_exit(1);
}

static void containers(const char *directory, const char *parent, unsigned long round)
{
	char mount_point[PATH_MAX], cgroup[PATH_MAX];

	snprintf(mount_point, sizeof(mount_point), "%s/%lu", directory, round % 50);
	snprintf(cgroup, sizeof(cgroup), "%s/container-%lu", parent, round % 50);
	make_directory(mount_point);
	make_directory(cgroup);
	use_container(mount_point, cgroup);
	/* The cgroup stays busy until the kernel has reaped its process. */
	while (rmdir(cgroup) < 0)
		if (errno != EBUSY)
			die(cgroup);
	rmdir(mount_point);
}

static void use_disk(const char *directory, unsigned long round)
{
	char path[PATH_MAX];
	off_t place = (off_t)(round * 37 % 256) * sizeof(content);
	int file;

	snprintf(path, sizeof(path), "%s/data-%lu", directory, round % 8);
	file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	if (file < 0 || pwrite(file, content, sizeof(content), place) < 0)
		die(path);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	if (pread(file, content, sizeof(content), (off_t)(round * 11 % 256) * MIB / 16) < 0)
		die(path);
	if (round % 8 == 0)
		fsync(file);
	close(file);
}

static void overwrite(const char *device)
{
	int file = open(device, O_WRONLY | O_DIRECT | O_CLOEXEC);

	if (file < 0)
		die(device);
	for (unsigned long i = 0; i < CHUNKS; i++, usleep(PAUSE / 4))
		if (pwrite(file, content, CHUNK, (off_t)(i * 5 % CHUNKS) * CHUNK) < 0)
			die(device);
	close(file);
}

int main(int count, char **argument)
{
	const char *role = count > 2 ? argument[1] : "";

	if (count > 2 && !strcmp(role, "copies")) {
		overwrite(argument[2]);
		return 0;
	}
	if (count > 2)
		make_directory(argument[2]);
	for (unsigned long round = 0;; round++, usleep(PAUSE)) {
		if (!strcmp(role, "files"))
			use_files(argument[2], round);
		else if (!strcmp(role, "containers") && count > 3)
			containers(argument[2], argument[3], round);
		else if (!strcmp(role, "disk"))
			use_disk(argument[2], round);
		else
			break;
	}
	fprintf(stderr, "usage: churn files|disk DIRECTORY, churn containers DIRECTORY CGROUP, "
			"or churn copies DEVICE\n");
	return 2;
}
