/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What crash knows of its target, in the payloads of PROTOCOL.md. */
#ifndef KCENSUS_TARGET_H
#define KCENSUS_TARGET_H

#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/*
 * Each function fills a buffer of a size that is given, and returns the number of bytes. None of
 * them writes to the target, and none leaves through crash's longjmp().
 */
size_t target_hello(char *buffer, size_t size);
size_t target_vmcoreinfo(char *buffer, size_t size);
size_t target_cpus(char *buffer, size_t size);

/* Stops at the first page that is unreadable; *status says why. */
size_t target_read(const struct read_request *request, char *buffer, uint32_t *status);

#endif
