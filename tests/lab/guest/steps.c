// SPDX-License-Identifier: LGPL-2.1-or-later
/* Reads the list of steps and executes it. */
#define _GNU_SOURCE
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

void write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		fail("write %s to %s: %s", text, path, strerror(errno));
	close(file);
}

void make_directories(const char *path)
{
	char part[PATH_MAX];

	for (const char *end = path; *end;) {
		end = strchrnul(end + 1, '/');
		snprintf(part, sizeof(part), "%.*s", (int)(end - path), path);
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			fail("mkdir %s: %s", part, strerror(errno));
	}
}

void pin(int cpu)
{
	static int now = -1;
	cpu_set_t set;

	if (cpu < 0 || cpu == now)
		return;
	now = cpu;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) < 0)
		fail("sched_setaffinity %d: %s", cpu, strerror(errno));
}

static void load_module(const char *path, const char *parameters)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0 || (syscall(SYS_finit_module, file, parameters, 0) < 0 && errno != EEXIST))
		fail("load %s: %s", path, strerror(errno));
	close(file);
}

static void mount_at(const char *type, const char *source, const char *target, const char *data)
{
	make_directories(target);
	/* devtmpfs may have mounted itself. */
	if (mount(source, target, type, 0, *data ? data : NULL) < 0 && errno != EBUSY)
		fail("mount %s on %s: %s", source, target, strerror(errno));
	note_begin("mount");
	note_text("type", type);
	note_text("target", target);
	note_end();
}

static void run_program(char **command)
{
	/* Without these mkfs.xfs refuses a small file system. */
	static char *environment[] = {"TEST_DIR=/", "TEST_DEV=/", "QA_CHECK_FS=1",
				      "DM_DISABLE_UDEV=1", NULL};
	pid_t child = fork();
	int status;

	if (child == 0) {
		execve(command[0], command, environment);
		_exit(127);
	}
	if (waitpid(child, &status, 0) < 0 || status)
		fail("%s failed with status %#x", command[0], status);
}

static void open_pipes(long count, size_t bytes)
{
	char *content = calloc(1, bytes + 1);
	int ends[2];

	for (long i = 0; i < count; i++)
		if (pipe(ends) < 0 || write(ends[1], content, bytes) != (ssize_t)bytes)
			fail("pipe: %s", strerror(errno));
	free(content);
	note_begin("pipes");
	note_number("count", count);
	note_end();
}

static void open_sockets(long count)
{
	int ends[2];

	for (long i = 0; i < count; i++)
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 || write(ends[0], "k", 1) != 1)
			fail("socketpair: %s", strerror(errno));
	note_begin("sockets");
	note_number("count", 2 * count);
	note_end();
}

static void anonymous_memory(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	memset(memory, 'k', bytes);
	note_begin("anon");
	note_number("bytes", (long)bytes);
	note_end();
}

static void watch(const char *path)
{
	int watcher = inotify_init1(IN_CLOEXEC);

	if (watcher < 0 || inotify_add_watch(watcher, path, IN_MODIFY) < 0)
		fail("inotify %s: %s", path, strerror(errno));
	note_begin("watch");
	note_text("dir", path);
	note_end();
}

static void sync_file_system(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0 || syncfs(file) < 0)
		fail("sync %s: %s", path, strerror(errno));
	close(file);
}

/* Writes a page every `stride` bytes and waits for the device, however long that takes. */
static void write_device(const char *device, long count, long stride)
{
	static char page[PAGE];
	int file = open(device, O_WRONLY | O_CLOEXEC);

	if (file < 0)
		fail("open %s: %s", device, strerror(errno));
	note_begin("device-write");
	note_text("device", device);
	note_number("count", count);
	note_end();
	if (fork() == 0) {
		memset(page, 'k', sizeof(page));
		for (long i = 0; i < count; i++)
			if (pwrite(file, page, sizeof(page), i * stride) != sizeof(page))
				fail("write %s: %s", device, strerror(errno));
		fdatasync(file);
		for (;;)
			pause();
	}
	close(file);
}

static bool is(const struct step *step, const char *verb, int args)
{
	if (strcmp(step->verb, verb) != 0)
		return false;
	if (step->args < args)
		fail("%s needs %d arguments", verb, args);
	return true;
}

static void run_step(struct step *step)
{
	char **arg = step->arg;

	pin(step->cpu);
	if (is(step, "module", 2))
		load_module(arg[0], arg[1]);
	else if (is(step, "mount", 4))
		mount_at(arg[0], arg[1], arg[2], arg[3]);
	else if (is(step, "run", 1))
		run_program(arg);
	else if (is(step, "write", 2))
		write_text(arg[0], arg[1]);
	else if (is(step, "mkdir", 1))
		make_directories(arg[0]);
	else if (is(step, "files", 5))
		files(arg);
	else if (is(step, "missing", 4))
		missing(arg);
	else if (is(step, "remove", 5))
		remove_files(arg);
	else if (is(step, "hold", 4))
		hold(arg);
	else if (is(step, "pipes", 2))
		open_pipes(atol(arg[0]), (size_t)atol(arg[1]));
	else if (is(step, "sockets", 1))
		open_sockets(atol(arg[0]));
	else if (is(step, "anon", 1))
		anonymous_memory((size_t)atol(arg[0]));
	else if (is(step, "watch", 1))
		watch(arg[0]);
	else if (is(step, "syncfs", 1))
		sync_file_system(arg[0]);
	else if (is(step, "device-write", 3))
		write_device(arg[0], atol(arg[1]), atol(arg[2]));
	else if (is(step, "churn", 1))
		churn(arg[0]);
	else if (is(step, "rmcgroup", 1))
		cgroup_remove(arg[0]);
	else if (is(step, "sleep", 1))
		usleep((useconds_t)atol(arg[0]) * 1000);
	else if (is(step, "record", 4))
		record(arg[0], arg[1], atoi(arg[2]), atoi(arg[3]));
	else if (is(step, "record-now", 2))
		record_now(arg[0], arg[1]);
	else if (is(step, "record-output", 2))
		record_output(arg[0], arg + 1);
	else if (is(step, "truth", 2))
		truth(arg[0], atoi(arg[1]));
	else if (is(step, "wait", 1))
		wait_for_host(!strcmp(arg[0], "busy"));
	else if (is(step, "truth-again", 1))
		truth_again(arg[0]);
	else if (is(step, "crash-load", 3))
		crash_load(arg[0], arg[1], arg[2]);
	else if (is(step, "crash-prepare", 0))
		crash_prepare();
	else if (is(step, "crash", 0))
		crash_now();
	else if (is(step, "copy", 2))
		copy_sparse(arg[0], arg[1]);
	else
		fail("unknown step: %s", step->verb);
}

/*
 * The steps up to "leave" are those of a process of its own, inside the cgroup. "leave stay" lets
 * it live on with all it has opened, "leave exit" ends it. Returns how many steps that were.
 */
static size_t run_inside(struct step *step)
{
	const char *cgroup = step->arg[0];
	size_t count = 1;
	int ready[2];
	pid_t child;
	char byte;

	while (strcmp(step[count].verb, "leave") != 0)
		count++;
	cgroup_make(cgroup);
	if (pipe2(ready, O_CLOEXEC) < 0)
		fail("pipe: %s", strerror(errno));
	child = fork();
	if (child == 0) {
		bool stay = !strcmp(step[count].arg[0], "stay");

		close(ready[0]);
		pin(step->cpu);
		cgroup_join(cgroup);
		run_steps(step + 1, count - 1);
		if (stay) {
			note_begin("process");
			note_number("pid", getpid());
			note_end();
		}
		if (write(ready[1], "", 1) != 1)
			fail("pipe: %s", strerror(errno));
		close(ready[1]);
		while (stay)
			pause();
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		fail("the process in %s died", cgroup);
	close(ready[0]);
	if (!strcmp(step[count].arg[0], "exit"))
		waitpid(child, NULL, 0);
	return count + 1;
}

void run_steps(struct step *step, size_t count)
{
	for (size_t i = 0; i < count;) {
		if (is(&step[i], "enter", 1)) {
			i += run_inside(&step[i]);
		} else {
			run_step(&step[i]);
			i++;
		}
	}
}

static void unquote(char *text)
{
	char *out = text;

	for (; *text; text++) {
		if (*text == '%') {
			char hex[3] = {text[1], text[2], '\0'};

			*out++ = (char)strtoul(hex, NULL, 16);
			text += 2;
		} else {
			*out++ = *text;
		}
	}
	*out = '\0';
}

/* One step per line: verb, CPU, arguments; tabs between them, bytes may be written as %xx. */
static struct step *read_steps(const char *path, size_t *count)
{
	struct step *steps = NULL;
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;

	if (!file)
		fail("open %s: %s", path, strerror(errno));
	*count = 0;
	while (getline(&line, &size, file) > 0) {
		struct step *step;
		char *rest = line, *field;

		line[strcspn(line, "\n")] = '\0';
		if (*count % 256 == 0)
			steps = realloc(steps, (*count + 256) * sizeof(*steps));
		step = &steps[(*count)++];
		memset(step, 0, sizeof(*step));
		step->verb = strsep(&rest, "\t");
		step->cpu = rest ? atoi(strsep(&rest, "\t")) : -1;
		while ((field = strsep(&rest, "\t")) != NULL) {
			if (step->args == sizeof(step->arg) / sizeof(step->arg[0]) - 1)
				fail("too many arguments: %s", step->verb);
			unquote(field);
			step->arg[step->args++] = field;
		}
		line = NULL; /* the step keeps it */
		size = 0;
	}
	fclose(file);
	return steps;
}

int main(void)
{
	struct rlimit limit = {.rlim_cur = 1 << 19, .rlim_max = 1 << 19};
	struct step *steps;
	size_t count;

	truth_init();
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		fail("setrlimit: %s", strerror(errno));
	steps = read_steps("/steps", &count);
	run_steps(steps, count);
	for (;;)
		pause();
}
