// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Processes that hold something and are stopped, and others that wait for it.
 * "stop-load hold WHAT FILE HOW NAME" starts a holder and stops it; "stop-load wait WHAT FILE NAME"
 * starts a waiter. Both return. Holders exit once there is a file /release, if they run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static void die(const char *what)
{
	fprintf(stderr, "stop-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void wait_forever(void)
{
	for (;;)
		pause();
}

static void hold_until_released(void)
{
	while (access("/release", F_OK) < 0)
		usleep(50000);
	_exit(0);
}

static int open_file(const char *path, int flags)
{
	int file = open(path, flags, 0644);

	if (file < 0)
		die(path);
	return file;
}

static void write_text(const char *path, const char *text)
{
	int file = open_file(path, O_WRONLY);

	if (write(file, text, strlen(text)) != (ssize_t)strlen(text))
		die(path);
	close(file);
}

/* Adds a line to the kernel log, in the words of kcensus_waits. The address is an inode's number. */
static void account(const char *verb, const char *what, int file, const char *mode)
{
	char line[256], name[16];
	struct stat status;

	prctl(PR_GET_NAME, name);
	if (fstat(file, &status) < 0)
		die("fstat");
	snprintf(line, sizeof(line), "kcensus_waits: task %d %s %s %s %lx %s\n",
		 (int)syscall(SYS_gettid), name, verb, what, (unsigned long)status.st_ino, mode);
	write_text("/dev/kmsg", line);
}

/* What mutexes of several processes have in common: their file, mapped at other addresses. */
struct shared {
	pthread_mutex_t robust, normal;
};

static struct shared *map_shared(int file)
{
	struct shared *shared;

	if (ftruncate(file, PAGE) < 0)
		die("ftruncate");
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	return shared;
}

static void make_shared(struct shared *shared)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	if (pthread_mutex_init(&shared->normal, &attributes))
		die("pthread_mutex_init");
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	if (pthread_mutex_init(&shared->robust, &attributes))
		die("pthread_mutex_init");
}

static void lock_range(int file, int command)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 16, .l_len = 16};

	if (fcntl(file, command, &range) < 0)
		die("fcntl");
}

/* Takes a lock, or waits for it. */
static void lock(const char *what, int file, int is_holder)
{
	const char *verb = is_holder ? "holds" : "waits";
	struct shared *shared;

	if (!strcmp(what, "flock")) {
		account(verb, what, file, "exclusive");
		if (flock(file, LOCK_EX) < 0)
			die("flock");
	} else if (!strcmp(what, "posix")) {
		account(verb, what, file, "exclusive");
		lock_range(file, F_SETLKW);
	} else if (!strcmp(what, "ofd")) {
		account(verb, what, file, "exclusive");
		lock_range(file, F_OFD_SETLKW);
	} else {
		shared = map_shared(file);
		if (is_holder)
			make_shared(shared);
		account(verb, "shared", file, what);
		if (pthread_mutex_lock(!strcmp(what, "robust") ? &shared->robust : &shared->normal))
			die("pthread_mutex_lock");
	}
}

/* Stops a process for good. */
static void stop(pid_t process, const char *how)
{
	char text[16];

	sprintf(text, "%d", process);
	if (!strcmp(how, "signal")) {
		kill(process, SIGSTOP);
	} else if (!strcmp(how, "trace")) {
		if (fork() == 0) {
			prctl(PR_SET_NAME, "tracer");
			if (ptrace(PTRACE_ATTACH, process, NULL, NULL) < 0)
				die("ptrace");
			wait_forever();
		}
	} else if (!strcmp(how, "v2")) {
		write_text("/cgroup2/jail/inner/cgroup.procs", text);
		write_text("/cgroup2/jail/cgroup.freeze", "1");
	} else if (!strcmp(how, "v1")) {
		write_text("/cgroup1/jail/inner/cgroup.procs", text);
		write_text("/cgroup1/jail/freezer.state", "FROZEN");
	}
}

static void make_cgroups(void)
{
	mkdir("/cgroup1", 0755);
	mkdir("/cgroup2", 0755);
	if (mount("lab", "/cgroup1", "cgroup", 0, "freezer") < 0)
		die("/cgroup1");
	if (mount("lab", "/cgroup2", "cgroup2", 0, NULL) < 0)
		die("/cgroup2");
	mkdir("/cgroup1/jail", 0755);
	mkdir("/cgroup1/jail/inner", 0755);
	mkdir("/cgroup2/jail", 0755);
	mkdir("/cgroup2/jail/inner", 0755);
}

/*
 * A process whose page faults another one serves, and a third one that reads its memory. The server
 * of faults is stopped before it does.
 */
static void fault(const char *how)
{
	struct uffdio_api api = {.api = UFFD_API};
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC), log = open_file("/dev/null", O_RDONLY);
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = {.range = {(unsigned long)page, PAGE},
					.mode = UFFDIO_REGISTER_MODE_MISSING};
	pid_t whole, server;
	int ready[2];
	char byte;

	if (pipe(ready) < 0 || faults < 0 || ioctl(faults, UFFDIO_API, &api) < 0 ||
	    ioctl(faults, UFFDIO_REGISTER, &range) < 0)
		die("userfaultfd");
	server = fork();
	if (server == 0) {
		prctl(PR_SET_NAME, "uffd-server");
		account("holds", "uffd", log, "exclusive");
		close(ready[0]);
		close(ready[1]);
		hold_until_released();
	}
	close(faults);
	close(ready[1]);
	if (read(ready[0], &byte, 1) < 0)
		die("pipe");
	stop(server, how);
	whole = getpid();
	if (fork() == 0) {
		struct iovec here = {&byte, 1}, there = {page, 1};

		prctl(PR_SET_NAME, "uffd-peek");
		account("waits", "uffd", log, "exclusive");
		process_vm_readv(whole, &here, 1, &there, 1, 0);
		wait_forever();
	}
	prctl(PR_SET_NAME, "uffd-fault");
	account("waits", "uffd", log, "exclusive");
	sleep(1);
	page[0] = 'k';
	wait_forever();
}

static void hold(char **arguments, int ready)
{
	char *how = arguments[2];
	pid_t heir;
	int file;

	prctl(PR_SET_NAME, arguments[3]);
	file = open_file(arguments[1], O_CREAT | O_RDWR);
	if (!strcmp(how, "inherit")) {
		/* The lock stays, as long as the child has the file open. */
		if (flock(file, LOCK_EX) < 0)
			die("flock");
		heir = fork();
		if (heir > 0)
			_exit(0);
		prctl(PR_SET_NAME, "flock-heir");
		account("holds", "flock", file, "exclusive");
		close(ready);
		kill(getpid(), SIGSTOP);
		hold_until_released();
	}
	lock(arguments[0], file, 1);
	if (!strcmp(how, "enter")) {
		close(ready);
		mkdir("/fuse/locked", 0755);
	}
	close(ready);
	hold_until_released();
}

int main(int argc, char **argv)
{
	int ready[2];
	pid_t child;
	char byte;

	if (argc < 2 || pipe(ready) < 0)
		return 2;
	if (!strcmp(argv[1], "cgroups")) {
		make_cgroups();
		return 0;
	}
	if (!strcmp(argv[1], "stop") && argc == 4) {
		stop(atoi(argv[2]), argv[3]);
		return 0;
	}
	child = fork();
	if (child == 0) {
		close(ready[0]);
		/* A stopped process whose parent exits is continued, but not in another session. */
		setsid();
		if (!strcmp(argv[1], "hold") && argc == 6)
			hold(argv + 2, ready[1]);
		close(ready[1]);
		if (!strcmp(argv[1], "fault") && argc == 3)
			fault(argv[2]);
		if (!strcmp(argv[1], "wait") && argc == 5) {
			prctl(PR_SET_NAME, argv[4]);
			lock(argv[2], open_file(argv[3], O_RDWR), 0);
			wait_forever();
		}
		return 2;
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) < 0)
		return 1;
	if (!strcmp(argv[1], "hold"))
		stop(child, argv[4]);
	return 0;
}
