// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Processes that make and unmake what analyses read: mounts, tasks, files and requests.
 * "churn-load DIRECTORY DISK" starts them and returns; they go on until the guest ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define CHILDREN 4

static void die(const char *what)
{
	fprintf(stderr, "churn-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void write_file(const char *path)
{
	int file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	if (file < 0 || write(file, path, strlen(path)) < 0)
		die(path);
	close(file);
}

static void mounts(const char *directory)
{
	char root[256], path[300];

	snprintf(root, sizeof(root), "%s/mount", directory);
	if (mkdir(root, 0755) < 0 && errno != EEXIST)
		die(root);
	if (mount("churn", root, "tmpfs", 0, NULL) < 0)
		die("mount");
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/file-%d", root, i);
		write_file(path);
	}
	if (umount(root) < 0)
		die("umount");
}

static void *wait_for_byte(void *pipe)
{
	char byte;

	if (read(((int *)pipe)[0], &byte, 1) < 0)
		die("read");
	return NULL;
}

/* Processes with a second thread; both sleep until the parent writes to their pipe. */
static void tasks(const char *directory)
{
	int ends[2];
	pthread_t thread;

	(void)directory;
	if (pipe(ends) < 0)
		die("pipe");
	for (int i = 0; i < CHILDREN; i++) {
		if (fork() != 0)
			continue;
		if (pthread_create(&thread, NULL, wait_for_byte, ends))
			_exit(1);
		wait_for_byte(ends);
		pthread_join(thread, NULL);
		_exit(0);
	}
	usleep(1000);
	if (write(ends[1], "12345678", 2 * CHILDREN) < 0)
		die("write");
	while (wait(NULL) > 0)
		;
	close(ends[0]);
	close(ends[1]);
}

/* Transactions, and tasks that wait until the log has them. */
static void files(const char *directory)
{
	char path[300], other[300];
	int file;

	snprintf(path, sizeof(path), "%s/logged", directory);
	snprintf(other, sizeof(other), "%s/renamed", directory);
	write_file(path);
	if (rename(path, other) < 0)
		die("rename");
	file = open(other, O_RDWR | O_CLOEXEC);
	if (file < 0 || fsync(file) < 0 || unlink(other) < 0)
		die(other);
	close(file);
}

static void requests(const char *disk)
{
	static char page[PAGE] __attribute__((aligned(PAGE)));
	int file = open(disk, O_RDWR | O_DIRECT | O_CLOEXEC);

	if (file < 0)
		die(disk);
	for (int i = 0; i < 64; i++) {
		off_t place = (rand() % 2048) * (off_t)PAGE;

		if (i % 2 ? pread(file, page, PAGE, place) < 0 : pwrite(file, page, PAGE, place) < 0)
			die(disk);
	}
	close(file);
}

static void start(void (*round)(const char *), const char *what)
{
	if (fork() != 0)
		return;
	for (;;) {
		round(what);
		usleep(5000);
	}
}

int main(int count, char **argument)
{
	if (count != 3)
		return 2;
	start(mounts, argument[1]);
	start(tasks, argument[1]);
	start(files, argument[1]);
	for (int i = 0; i < 4; i++)
		start(requests, argument[2]);
	return 0;
}
