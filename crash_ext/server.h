/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Answers the requests of a child. */
#ifndef KCENSUS_SERVER_H
#define KCENSUS_SERVER_H

#include "child.h"

enum outcome {
	OUTCOME_CLOSED,      /* the child closed the socket, or ended */
	OUTCOME_SILENT,      /* it did so before any request */
	OUTCOME_INTERRUPTED, /* the user pressed Ctrl-C */
	OUTCOME_BROKEN,      /* the child sent what is not in the protocol */
};

/* Answer until there is no more to answer; `buffer` has MAX_REPLY bytes. */
enum outcome serve(struct child *child, char *buffer);

#endif
