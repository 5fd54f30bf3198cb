// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Processes that wait, or keep the machine busy. "wait-load ROLE ARGUMENT..." starts them and
 * returns; they go on until the guest ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fuse.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static void die(const char *what)
{
	fprintf(stderr, "wait-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int open_file(const char *path, int flags)
{
	int file = open(path, flags | O_CLOEXEC, 0644);

	if (file < 0)
		die(path);
	return file;
}

static void wait_forever(void)
{
	for (;;)
		pause();
}

/* Freezes a file system, and forgets to thaw it. */
static void freeze(char **path)
{
	if (ioctl(open_file(path[0], O_RDONLY), FIFREEZE, 0) < 0)
		die(path[0]);
	wait_forever();
}

static void write_file(char **path)
{
	int file = open_file(path[0], O_WRONLY);

	for (;; usleep(10000))
		if (write(file, "k", 1) != 1)
			die(path[0]);
}

static void make_directory(char **path)
{
	if (mkdir(path[0], 0755) < 0)
		die(path[0]);
	wait_forever();
}

static void look_up(char **path)
{
	struct stat status;

	if (stat(path[0], &status) < 0 && errno != ENOENT)
		die(path[0]);
	wait_forever();
}

static void *unmap(void *page)
{
	prctl(PR_SET_NAME, "fault-unmap");
	sleep(1);
	munmap(page, PAGE);
	return NULL;
}

/*
 * Writes to a page of a mapped file. Another thread then removes that mapping, and a process of
 * its own reads the command line of both, as ps does.
 */
static void fault(char **path)
{
	char name[64], *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
				    open_file(path[0], O_RDWR), 0);
	pid_t whole = getpid();
	pthread_t id;

	if (page == MAP_FAILED || pthread_create(&id, NULL, unmap, page))
		die(path[0]);
	if (fork() == 0) {
		prctl(PR_SET_NAME, "fault-ps");
		sleep(2);
		sprintf(name, "/proc/%d/cmdline", whole);
		if (read(open_file(name, O_RDONLY), name, sizeof(name)) < 0)
			die("cmdline");
		wait_forever();
	}
	page[0] = 'k';
	wait_forever();
}

static void answer(int device, uint64_t request, int error, const void *content, size_t size)
{
	struct fuse_out_header header = {(uint32_t)(sizeof(header) + size), error, request};
	struct iovec parts[] = {{&header, sizeof(header)}, {(void *)content, size}};

	if (writev(device, parts, 2) < 0)
		die("answer");
}

/*
 * Serves an empty file system, until a directory is to be made in it: then it stops, or makes that
 * directory through its own mount, where it has to wait for itself.
 */
static void serve(char **arguments)
{
	static char request[1 << 17];
	static const struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
						  .minor = FUSE_KERNEL_MINOR_VERSION,
						  .max_write = PAGE};
	static const struct fuse_attr_out root = {
		.attr_valid = 3600, .attr = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 2}};
	const struct fuse_in_header *header = (const struct fuse_in_header *)request;
	int device = open_file("/dev/fuse", O_RDWR);
	char *path = arguments[1];
	char options[64], inner[256];

	sprintf(options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if ((mkdir(path, 0755) < 0 && errno != EEXIST) || mount("lab", path, "fuse", 0, options))
		die(path);
	while (read(device, request, sizeof(request)) > 0) {
		if (header->opcode == FUSE_INIT) {
			answer(device, header->unique, 0, &init, sizeof(init));
		} else if (header->opcode == FUSE_GETATTR) {
			answer(device, header->unique, 0, &root, sizeof(root));
		} else if (header->opcode == FUSE_LOOKUP) {
			answer(device, header->unique, -ENOENT, NULL, 0);
		} else if (header->opcode == FUSE_MKDIR) {
			if (!strcmp(arguments[0], "enter")) {
				sprintf(inner, "%s/inner", path);
				mkdir(inner, 0755);
			}
			wait_forever();
		} else if (header->opcode != FUSE_FORGET) {
			answer(device, header->unique, -ENOSYS, NULL, 0);
		}
	}
	die("/dev/fuse");
}

static void sleep_in_pipe(void)
{
	int ends[2];
	char byte;

	if (pipe(ends) < 0 || read(ends[0], &byte, 1) < 0)
		die("pipe");
}

static void sleep_in_futex(void)
{
	static int word;

	syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void sleep_in_poll(void)
{
	struct pollfd none = {.fd = -1};

	poll(&none, 1, -1);
}

static void sleep_in_flock(void)
{
	flock(open_file("/bin/wait-load", O_RDONLY), LOCK_EX);
}

static void sleep_for_child(void)
{
	if (fork() > 0)
		wait(NULL);
}

static void sleep_long(void)
{
	sleep(100000);
}

/* Adds a line to the kernel log, in the words of kcensus_waits. */
static void account(const char *verb, const char *kind, const void *address, const char *mode)
{
	int log = open_file("/dev/kmsg", O_WRONLY), length;
	char line[256], name[16];

	prctl(PR_GET_NAME, name);
	length = snprintf(line, sizeof(line), "kcensus_waits: task %d %s %s %s %zx %s\n",
			  (int)syscall(SYS_gettid), name, verb, kind, (size_t)address, mode);
	if (write(log, line, (size_t)length) != length)
		die("/dev/kmsg");
	close(log);
}

/* A thread that takes a mutex of its own, if it has one, and then wants another one's. */
struct locker {
	const char *name;
	int holds, waits; /* numbers of mutexes, from 1 on; who waits for none reads a pipe */
};

#define FUTEXES 4
static pthread_mutex_t futexes[FUTEXES];
static const char *const modes[FUTEXES] = {"pi", "pi", "robust", "normal"};

/* PTHREAD_PRIO_INHERIT lets the kernel look for cycles, and it refuses them. */
static const struct locker lockers[] = {
	{"pi-owner", 1, 0},    {"pi-middle", 2, 1},   {"pi-last", 0, 2},
	{"robust-owner", 3, 0}, {"robust-wait", 0, 3}, {"robust-wait", 0, 3},
	{"normal-owner", 4, 0}, {"normal-wait", 0, 4}, {"normal-wait", 0, 4},
};
#define LOCKERS (sizeof(lockers) / sizeof(lockers[0]))

static void lock(int number)
{
	if (pthread_mutex_lock(&futexes[number - 1]))
		die("pthread_mutex_lock");
}

static void *run_locker(void *argument)
{
	const struct locker *locker = argument;

	prctl(PR_SET_NAME, locker->name);
	if (locker->holds) {
		lock(locker->holds);
		/* The word that the kernel sees is the first one of a mutex. */
		account("holds", "futex", &futexes[locker->holds - 1], modes[locker->holds - 1]);
	}
	sleep(1);
	if (locker->waits) {
		account("waits", "futex", &futexes[locker->waits - 1], modes[locker->waits - 1]);
		lock(locker->waits);
	}
	sleep_in_pipe();
	return NULL;
}

/* Threads of one process that wait for each other's mutexes, and for a byte from a pipe. */
static void lock_futexes(char **unused)
{
	pthread_mutexattr_t attributes;
	pthread_t id;

	(void)unused;
	for (int i = 0; i < FUTEXES; i++) {
		pthread_mutexattr_init(&attributes);
		if (!strcmp(modes[i], "pi"))
			pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
		if (!strcmp(modes[i], "robust"))
			pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
		if (pthread_mutex_init(&futexes[i], &attributes))
			die("pthread_mutex_init");
	}
	for (size_t i = 0; i < LOCKERS; i++)
		if (pthread_create(&id, NULL, run_locker, (void *)&lockers[i]))
			die("pthread_create");
	wait_forever();
}

/* Open while a role has something to do that the scenario has to wait for. */
static int not_ready[2];

/* So many processes that sleep: in six ways, and none for another one's lock but that of a file. */
static void sleepers(char **count)
{
	static void (*const ways[])(void) = {sleep_in_pipe, sleep_in_futex, sleep_in_poll,
					     sleep_in_flock, sleep_for_child, sleep_long};
	int number = atoi(count[0]);

	for (int i = 0; i < number; i++) {
		if (fork() == 0) {
			close(not_ready[1]);
			ways[i % (int)(sizeof(ways) / sizeof(ways[0]))]();
			wait_forever();
		}
	}
	close(not_ready[1]);
	wait_forever();
}

/* Keeps a CPU busy, with system calls that take locks for a moment. */
static void busy(char **directory)
{
	char name[256], other[256];

	sprintf(name, "%s/a-%d", directory[0], getpid());
	sprintf(other, "%s/b-%d", directory[0], getpid());
	for (;;) {
		close(open_file(name, O_CREAT | O_WRONLY));
		if (rename(name, other) < 0 || unlink(other) < 0)
			die(name);
	}
}

/* Waits until the scenario has written a file, to begin all at once. */
static void await_start(void)
{
	while (access("/start", F_OK) < 0)
		usleep(20000);
}

/*
 * Processes that make a file each, in directories of their own. Once the disk stops and what is
 * cached of it is dropped, the first ones wait for its blocks with space of the log reserved, which
 * the others then lack.
 */
static void reserve_log(char **arguments)
{
	char path[256];

	for (int i = 0; i < atoi(arguments[1]); i++) {
		int directory;

		sprintf(path, "%s/reserve-%d", arguments[0], i);
		if (mkdir(path, 0755) < 0)
			die(path);
		/* Keeps the directory in memory. */
		directory = open_file(path, O_RDONLY | O_DIRECTORY);
		if (fork() == 0) {
			close(not_ready[1]);
			await_start();
			/* One after the other, so that it is always the first ones. */
			usleep(20000 * i);
			if (openat(directory, "file", O_CREAT | O_WRONLY, 0644) < 0)
				die("file");
			wait_forever();
		}
		close(directory);
	}
	close(not_ready[1]);
	wait_forever();
}

/* Changes a file, and waits until that is on the disk. */
static void force_log(char **arguments)
{
	int file = open_file(arguments[0], O_CREAT | O_RDWR);

	/* Now, so that what this needs is in memory, and then again, should it be on the disk. */
	if (fchmod(file, 0600) < 0)
		die(arguments[0]);
	close(not_ready[1]);
	await_start();
	sleep((unsigned)atoi(arguments[1]));
	if (fchmod(file, 0640) < 0)
		die(arguments[0]);
	account("waits", arguments[2], NULL, "force");
	if (fsync(file) < 0)
		die("fsync");
	wait_forever();
}

/*
 * Makes every CPU read some files, called "CPU-NUMBER": the kernel keeps the last few blocks that a
 * CPU has read, even if it is to drop its caches.
 */
static void forget_blocks(const char *directory)
{
	char path[256];
	struct stat status;
	cpu_set_t set;

	for (int cpu = 0; cpu < get_nprocs(); cpu++) {
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set) < 0)
			die("sched_setaffinity");
		/* The first and last ones may share pages with other files. */
		for (int i = 20; i < 160; i++) {
			sprintf(path, "%s/%d-%d", directory, cpu, i);
			if (stat(path, &status) < 0)
				die(path);
		}
	}
}

/*
 * Changes a file within the transaction that all share, which cannot end before: the first one to
 * do so waits for the block of the file's inode.
 */
static void join_transaction(char **arguments)
{
	bool is_first = !strcmp(arguments[1], "hold");
	char path[256];
	int file;

	sprintf(path, "%s/%s", arguments[0], arguments[1]);
	file = open_file(path, O_RDWR);
	if (is_first)
		forget_blocks(arguments[0]);
	close(not_ready[1]);
	await_start();
	sleep(is_first ? 0 : 2);
	account(is_first ? "holds" : "waits", "journal", NULL, "handle");
	if (fchmod(file, 0600) < 0)
		die("fchmod");
	wait_forever();
}

static const struct role {
	const char *name;
	void (*function)(char **arguments);
	int arguments;
	bool is_awaited; /* until it closes not_ready */
} roles[] = {
	{"freeze", freeze, 1, false},
	{"write", write_file, 1, false},
	{"make-directory", make_directory, 1, false},
	{"look-up", look_up, 1, false},
	{"fault", fault, 1, false},
	{"serve", serve, 2, false},
	{"futexes", lock_futexes, 0, false},
	{"reserve-log", reserve_log, 2, true},
	{"force-log", force_log, 3, true},
	{"join", join_transaction, 2, true},
	{"sleepers", sleepers, 1, true},
	{"busy", busy, 1, false},
};

int main(int argc, char **argv)
{
	char byte;

	for (size_t i = 0; argc > 1 && i < sizeof(roles) / sizeof(roles[0]); i++) {
		const struct role *role = &roles[i];

		if (strcmp(role->name, argv[1]) != 0 || argc - 2 < role->arguments)
			continue;
		if (pipe(not_ready) < 0)
			die("pipe");
		if (fork() > 0) {
			close(not_ready[1]);
			return read(not_ready[0], &byte, 1) < 0;
		}
		close(not_ready[0]);
		if (!role->is_awaited)
			close(not_ready[1]);
		prctl(PR_SET_NAME, role->name);
		role->function(argv + 2);
		return 0;
	}
	return 2;
}
