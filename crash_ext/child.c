/* SPDX-License-Identifier: GPL-3.0-or-later */
#define _GNU_SOURCE
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Milliseconds between checks of a silent child. */
#define LOOK 100
/* Milliseconds from SIGTERM to SIGKILL. */
#define TERM_GRACE 1000
/* Descriptors to close on kernels without close_range(), more than crash has. */
#define MAX_DESCRIPTORS 65536
#define REPORT (CHILD_SOCKET + 1)

/* Ctrl-C, and signals that end crash, which would otherwise wait for the child. */
static const int interrupts[CHILD_INTERRUPTS] = { SIGINT, SIGHUP, SIGTERM };

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal)
{
	interrupted = signal;
}

int child_interrupted(void)
{
	return interrupted;
}

static const char *const removed[] = { "COLUMNS=", "LINES=", "KCENSUS_PAGER=" };
#define REMOVED (sizeof removed / sizeof *removed)
/* Most entries that environment() adds, with the NULL at the end. */
#define ADDED 3

/*
 * Return the environment of the child, whose strings are not copied; NULL if memory is short.
 * crash's readline sets COLUMNS, which would cut lines in a file or pipe.
 */
static char **environment(const char *columns)
{
	size_t count = 0, used = 0, i, j;
	char **result;

	while (environ[count])
		count++;
	result = calloc(count + ADDED, sizeof *result);
	if (!result)
		return NULL;
	for (i = 0; i < count; i++) {
		for (j = 0; j < REMOVED && strncmp(environ[i], removed[j], strlen(removed[j]));)
			j++;
		if (j == REMOVED)
			result[used++] = environ[i];
	}
	/* crash has its own pager. */
	result[used++] = "KCENSUS_PAGER=cat";
	if (*columns)
		result[used++] = (char *)columns;
	return result;
}

static void close_from(int first)
{
	int fd;

#ifdef SYS_close_range
	if (!syscall(SYS_close_range, first, ~0u, 0))
		return;
#endif
	for (fd = first; fd < MAX_DESCRIPTORS; fd++)
		close(fd);
}

/* Start the program, in the child; descriptors move away before one takes its final number. */
static void run(const struct child *child, const struct launch *launch, int socket, int report,
		char **environment, pid_t parent)
{
	const struct sigaction original = { .sa_handler = SIG_DFL };
	int fds[5] = { open("/dev/null", O_RDONLY), launch->output, launch->errors, socket, report };
	sigset_t mask = child->mask;
	int i, reason;

	/* Python shows a stack trace on Ctrl-C while it starts; the program unblocks the signal. */
	sigaddset(&mask, SIGINT);
	for (i = 0; i < 5; i++)
		fds[i] = fcntl(fds[i], F_DUPFD, REPORT + 1);
	report = fds[4];
	for (i = 0; i < 5; i++)
		if (fds[i] < 0 || dup2(fds[i], i) < 0)
			goto failed;
	fcntl(REPORT, F_SETFD, FD_CLOEXEC);
	report = REPORT;
	close_from(REPORT + 1);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
	for (i = 0; i < CHILD_INTERRUPTS; i++)
		sigaction(interrupts[i], &original, NULL);
	sigaction(SIGPIPE, &original, NULL);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	execvpe(launch->argv[0], launch->argv, environment);
failed:
	reason = errno;
	while (write(report, &reason, sizeof reason) < 0 && errno == EINTR)
		;
	_exit(127);
}

static void take_signals(struct child *child)
{
	struct sigaction action = { .sa_handler = note_interrupt };
	sigset_t blocked;
	int i;

	interrupted = 0;
	/* Signals arrive only in ppoll(), so that none is missed between a look and a wait. */
	sigemptyset(&blocked);
	for (i = 0; i < CHILD_INTERRUPTS; i++)
		sigaddset(&blocked, interrupts[i]);
	sigprocmask(SIG_BLOCK, &blocked, &child->mask);
	for (i = 0; i < CHILD_INTERRUPTS; i++)
		sigaction(interrupts[i], &action, &child->actions[i]);
}

/* Return the mask with which a wait ends on an interrupt. */
static sigset_t waiting_mask(const struct child *child)
{
	sigset_t mask = child->mask;
	int i;

	for (i = 0; i < CHILD_INTERRUPTS; i++)
		sigdelset(&mask, interrupts[i]);
	return mask;
}

static void restore_signals(const struct child *child)
{
	struct timespec none = { 0 };
	sigset_t mask = waiting_mask(child);
	int i;

	/* Take pending signals. */
	ppoll(NULL, 0, &none, &mask);
	for (i = 0; i < CHILD_INTERRUPTS; i++)
		sigaction(interrupts[i], &child->actions[i], NULL);
	sigprocmask(SIG_SETMASK, &child->mask, NULL);
}

/* Sleep for some milliseconds, or until an event or an interrupt. Return as ppoll(). */
static int doze(const struct child *child, struct pollfd *fds, int count, int milliseconds)
{
	struct timespec span = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
	sigset_t mask = waiting_mask(child);

	return ppoll(fds, count, &span, &mask);
}

/* Return the errno of the failed start; 0 if the program has started. */
static int failure(const struct child *child, int report)
{
	struct pollfd fd = { .fd = report, .events = POLLIN };
	int reason;

	/* A program on a file server that does not answer may never start. */
	while (doze(child, &fd, 1, LOOK) <= 0)
		if (interrupted)
			return EINTR;
	/* The pipe closes without data when the program has started. */
	return read(report, &reason, sizeof reason) == sizeof reason ? reason : 0;
}

static void close_pair(const int pair[2])
{
	close(pair[0]);
	close(pair[1]);
}

int child_start(struct child *child, const struct launch *launch)
{
	int ends[2], report[2], reason = 0;
	char columns[32] = "", **variables;
	pid_t parent = getpid();

	*child = (struct child){ .socket = -1 };
	if (launch->columns > 0)
		snprintf(columns, sizeof columns, "COLUMNS=%d", launch->columns);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return errno;
	if (pipe2(report, O_CLOEXEC)) {
		reason = errno;
		close_pair(ends);
		return reason;
	}
	variables = environment(columns);
	if (!variables) {
		close_pair(ends);
		close_pair(report);
		return ENOMEM;
	}
	take_signals(child);
	child->pid = fork();
	if (!child->pid)
		run(child, launch, ends[1], report[1], variables, parent);
	if (child->pid < 0)
		reason = errno;
	close(ends[1]);
	close(report[1]);
	free(variables);
	if (child->pid > 0)
		reason = failure(child, report[0]);
	close(report[0]);
	child->socket = ends[0];
	if (reason) {
		if (child->pid > 0)
			child_end(child, 0);
		else {
			close(child->socket);
			restore_signals(child);
		}
	}
	return reason;
}

/* Return whether the child has ended, without waiting. */
static bool reap(struct child *child)
{
	pid_t ended;

	if (!child->pid)
		return true;
	ended = waitpid(child->pid, &child->status, WNOHANG);
	if (!ended || (ended < 0 && errno != ECHILD))
		return false;
	child->is_lost = ended < 0;
	child->pid = 0;
	return true;
}

bool child_look(struct child *child)
{
	doze(child, NULL, 0, 0);
	return !interrupted;
}

bool child_wait(struct child *child, short events)
{
	struct pollfd fd = { .fd = child->socket, .events = events };

	while (!interrupted) {
		int ready = doze(child, &fd, 1, LOOK);

		if (interrupted)
			return false;
		if (ready > 0)
			return true;
		/* A process that the child left behind may hold the socket open. */
		if (reap(child))
			return false;
	}
	return false;
}

/* Wait at most `milliseconds` for the child to end. Return whether it has ended. */
static bool ended_within(struct child *child, int milliseconds)
{
	const int step = 5;

	for (; milliseconds > 0; milliseconds -= step) {
		if (reap(child))
			return true;
		doze(child, NULL, 0, step);
	}
	return reap(child);
}

int child_end(struct child *child, int grace)
{
	bool has_ended = ended_within(child, grace);
	int last = 0;

	close(child->socket);
	child->socket = -1;
	if (!has_ended) {
		last = SIGTERM;
		kill(child->pid, last);
		has_ended = ended_within(child, TERM_GRACE);
	}
	if (!has_ended) {
		last = SIGKILL;
		kill(child->pid, last);
		while (!reap(child))
			doze(child, NULL, 0, LOOK);
	}
	/*
	 * A terminal gives Ctrl-C to crash and to the child at once: the child may end before the
	 * signal arrives here.
	 */
	if (!interrupted && !last && !child->is_lost && WIFSIGNALED(child->status) &&
	    WTERMSIG(child->status) == SIGINT)
		interrupted = SIGINT;
	restore_signals(child);
	return last;
}
