/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The messages between the extension and kcensus; PROTOCOL.md describes them. */
#ifndef KCENSUS_PROTOCOL_H
#define KCENSUS_PROTOCOL_H

#include <stdint.h>

#define PROTOCOL_VERSION 1

#define MAX_REPLY (4u << 20)

enum request {
	REQUEST_HELLO = 1,
	REQUEST_VMCOREINFO = 2,
	REQUEST_READ = 3,
	REQUEST_CPUS = 4,
};

enum status {
	STATUS_COMPLETE = 0,
	STATUS_FILTERED = 1,
	STATUS_ABSENT = 2,
	STATUS_TRUNCATED = 3,
	STATUS_UNREADABLE = 4,
	STATUS_UNMAPPED = 5,
	STATUS_UNKNOWN = 6,
};

enum space {
	SPACE_PHYSICAL = 0,
	SPACE_VIRTUAL = 1,
};

/* Before every request and every reply. */
struct header {
	uint32_t length; /* of the payload that follows */
	uint32_t kind;   /* enum request, or enum status in a reply */
};

struct read_request {
	uint64_t address;
	uint32_t size;
	uint32_t space;
};

struct cpu_state {
	uint32_t cpu;
	uint32_t pid;
	uint64_t task;
	uint64_t pc;
	uint64_t sp;
};

#endif
