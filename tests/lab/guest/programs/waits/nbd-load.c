// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A server of network block devices that negotiates, and then answers nothing. "nbd-load ADDRESS
 * PORT" starts a process that goes on until the guest ends, and returns once it listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE (16 << 20)

enum { EXPORT_NAME = 1, INFO = 6, GO = 7 };
enum { ACK = 1, INFORMATION = 3 };
enum { HAS_FLAGS = 1, FIXED_NEWSTYLE = 1, NO_ZEROES = 2 };

static const uint64_t hello = 0x4e42444d41474943, option_magic = 0x49484156454f5054;
static const uint64_t reply_magic = 0x3e889045565a9;

struct __attribute__((packed)) reply {
	uint64_t magic;
	uint32_t option, type, length;
};

static void die(const char *what)
{
	fprintf(stderr, "nbd-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void get(int peer, void *data, size_t size)
{
	if (size && recv(peer, data, size, MSG_WAITALL) != (ssize_t)size)
		_exit(0);
}

static void put(int peer, const void *data, size_t size)
{
	if (send(peer, data, size, MSG_NOSIGNAL) != (ssize_t)size)
		_exit(0);
}

static void answer(int peer, uint32_t option, uint32_t type, uint32_t length)
{
	struct reply reply = {htobe64(reply_magic), htobe32(option), htobe32(type), htobe32(length)};

	put(peer, &reply, sizeof(reply));
}

/* Return when the client has chosen the only export. */
static void negotiate(int peer)
{
	struct __attribute__((packed)) {
		uint64_t hello, magic;
		uint16_t flags;
	} greeting = {htobe64(hello), htobe64(option_magic), htobe16(FIXED_NEWSTYLE | NO_ZEROES)};
	struct __attribute__((packed)) {
		uint64_t size;
		uint16_t flags;
	} export = {htobe64(SIZE), htobe16(HAS_FLAGS)};
	struct __attribute__((packed)) {
		uint64_t magic;
		uint32_t option, length;
	} asked;
	uint16_t kind = 0;
	uint32_t flags;
	char data[4096];

	put(peer, &greeting, sizeof(greeting));
	get(peer, &flags, sizeof(flags));
	for (;;) {
		get(peer, &asked, sizeof(asked));
		asked.option = be32toh(asked.option);
		asked.length = be32toh(asked.length);
		if (asked.length > sizeof(data))
			_exit(0);
		get(peer, data, asked.length);
		if (asked.option == EXPORT_NAME) {
			put(peer, &export, sizeof(export));
			return;
		}
		if (asked.option == INFO || asked.option == GO) {
			answer(peer, asked.option, INFORMATION, sizeof(kind) + sizeof(export));
			put(peer, &kind, sizeof(kind));
			put(peer, &export, sizeof(export));
		}
		answer(peer, asked.option, ACK, 0);
		if (asked.option == GO)
			return;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in place = {.sin_family = AF_INET};
	int file = socket(AF_INET, SOCK_STREAM, 0), on = 1, peer;
	char data[4096];

	if (argc != 3 || inet_pton(AF_INET, argv[1], &place.sin_addr) != 1)
		die("usage: nbd-load ADDRESS PORT");
	place.sin_port = htons(atoi(argv[2]));
	if (file < 0 || setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(file, (struct sockaddr *)&place, sizeof(place)) || listen(file, 8))
		die(argv[1]);
	if (fork())
		return 0;
	prctl(PR_SET_NAME, "nbd-server");
	while ((peer = accept(file, NULL, NULL)) >= 0) {
		if (fork()) {
			close(peer);
			continue;
		}
		negotiate(peer);
		while (read(peer, data, sizeof(data)) > 0)
			;
		_exit(0);
	}
	die("accept");
}
