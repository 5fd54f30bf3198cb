/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The Python side: a child process at the other end of a socket. */
#ifndef KCENSUS_CHILD_H
#define KCENSUS_CHILD_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Signals that end waiting. */
#define CHILD_INTERRUPTS 3

struct child {
	pid_t pid;     /* 0 once it is reaped */
	int socket;    /* -1 once it is closed */
	int status;    /* as waitpid() returns it, once it is reaped */
	bool is_lost;  /* something else reaped it, so the status is unknown */
	sigset_t mask; /* of signals, outside of the command */
	struct sigaction actions[CHILD_INTERRUPTS];
};

/* What the child gets. */
struct launch {
	char *const *argv;
	int output, errors; /* descriptors */
	int columns;        /* width to print in, 0 where the output has none */
};

/* The child has the socket as this descriptor. */
#define CHILD_SOCKET 3

/*
 * Start the child. Until child_end(), Ctrl-C, SIGHUP and SIGTERM are not crash's own: they
 * only end waiting. Return 0, or the errno of what failed, EINTR on such a signal; nothing is left
 * then. The child has SIGINT blocked.
 */
int child_start(struct child *child, const struct launch *launch);

/*
 * Return the signal that ended waiting since child_start(), which is SIGINT for Ctrl-C; or 0. After
 * child_end(), SIGINT also where the child alone got it.
 */
int child_interrupted(void);

/* Take the signals that have arrived. Return false on an interrupt. */
bool child_look(struct child *child);

/*
 * Wait until the socket is ready for `events`. Return false on an interrupt, or where the child has
 * ended.
 */
bool child_wait(struct child *child, short events);

/*
 * Give the child `grace` milliseconds to end, then end it; close the socket, and restore what
 * child_start() changed. Return the signal that made it end, SIGTERM or SIGKILL; 0 for none.
 */
int child_end(struct child *child, int grace);

#endif
