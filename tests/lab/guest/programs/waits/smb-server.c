// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * An SMB server for guests that falls silent. "smb-server ADDRESS PORT" returns when it listens. It
 * has what a mount without a user needs (SMB 2.1, [MS-SMB2]): a share with a root and with files
 * whose names begin with "file", of 64 KiB each, which take all that is written and forget it.
 *
 * While the file /stop exists, it reads all requests and answers none; it accepts connections, too.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER 64
#define SIZE 65536
#define MAX_MESSAGE (SIZE + 4096)

#define NOT_FOUND 0xc0000034u
#define NO_SUCH_FILE 0xc000000fu
#define END_OF_FILE 0xc0000011u
#define MORE_PROCESSING 0xc0000016u
#define NOT_SUPPORTED 0xc00000bbu

enum { NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_CONNECT, TREE_DISCONNECT, CREATE, CLOSE, FLUSH, READ,
       WRITE, LOCK, IOCTL, CANCEL, ECHO, QUERY_DIRECTORY, CHANGE_NOTIFY, QUERY_INFO, SET_INFO };
enum { RELATED = 4, RESPONSE = 1, DIRECTORY = 0x10, NORMAL = 0x80, ROOT = 1 };
enum { OF_FILE = 1, OF_FILE_SYSTEM = 2 };

/* An answer that grows: the header, and what follows it. */
struct answer {
	unsigned char *start;
	size_t size;
	uint32_t status;
};

static uint64_t number(const unsigned char *from, size_t bytes)
{
	uint64_t value = 0;

	memcpy(&value, from, bytes);
	return value;
}

static void set(unsigned char *at, uint64_t value, size_t bytes)
{
	memcpy(at, &value, bytes);
}

static void put(struct answer *answer, uint64_t value, size_t bytes)
{
	set(answer->start + answer->size, value, bytes);
	answer->size += bytes;
}

static void put_zeros(struct answer *answer, size_t count)
{
	memset(answer->start + answer->size, 0, count);
	answer->size += count;
}

/* Four times of 2026. */
static void put_times(struct answer *answer)
{
	for (int i = 0; i < 4; i++)
		put(answer, 134000000000000000u, 8);
}

static bool is_directory(uint64_t file)
{
	return file == ROOT;
}

static void put_sizes(struct answer *answer, uint64_t file)
{
	put(answer, is_directory(file) ? 0 : SIZE, 8);
	put(answer, is_directory(file) ? 0 : SIZE, 8);
}

static uint32_t attributes(uint64_t file)
{
	return is_directory(file) ? DIRECTORY : NORMAL;
}

static void negotiate(struct answer *answer)
{
	put(answer, 65, 2);
	put(answer, 1, 2);      /* signing is possible */
	put(answer, 0x0210, 4); /* the dialect */
	put_zeros(answer, 16);
	put(answer, 0, 4);
	for (int i = 0; i < 3; i++)
		put(answer, SIZE, 4);
	put_zeros(answer, 16);
	put(answer, HEADER + 64, 2); /* no token: NTLM without a wrapper */
	put_zeros(answer, 6);
}

/* The challenge of NTLM, and then any response as that of a guest. */
static void set_up_session(struct answer *answer, const unsigned char *body)
{
	const unsigned char *token = body - HEADER + number(body + 12, 2);
	bool is_first = number(token + 8, 4) == 1;

	put(answer, 9, 2);
	put(answer, !is_first, 2);
	put(answer, HEADER + 8, 2);
	put(answer, is_first ? 52 : 0, 2);
	if (!is_first)
		return;
	answer->status = MORE_PROCESSING;
	memcpy(answer->start + answer->size, "NTLMSSP", 8);
	answer->size += 8;
	put(answer, 2, 4);
	put(answer, (uint64_t)48 << 32, 8); /* no name */
	put(answer, 0xa08a8235u, 4);
	put(answer, 0x1122334455667788u, 8);
	put_zeros(answer, 8);
	put(answer, (uint64_t)48 << 32 | 4 << 16 | 4, 8);
	put_zeros(answer, 4); /* the end of what the server says of itself */
}

static void connect_tree(struct answer *answer, const unsigned char *body)
{
	const unsigned char *path = body - HEADER + number(body + 4, 2);
	bool is_pipe = number(path + number(body + 6, 2) - 2, 2) == '$';

	set(answer->start + 36, is_pipe ? 2 : 1, 4);
	put(answer, 16, 2);
	put(answer, is_pipe ? 2 : 1, 2);
	put_zeros(answer, 8);
	put(answer, 0x001f01ff, 4);
}

static uint64_t create(struct answer *answer, const unsigned char *body)
{
	const unsigned char *name = body - HEADER + number(body + 44, 2);
	size_t length = number(body + 46, 2);
	uint64_t file = ROOT;

	if (length && (length < 8 || memcmp(name, u"file", 8))) {
		answer->status = NOT_FOUND;
		return 0;
	}
	if (length)
		file = 2 + number(name + length - 2, 2);
	put(answer, 89, 2);
	put(answer, is_directory(file) ? 0 : body[3], 2); /* the oplock that the client wants */
	put(answer, 1, 4);
	put_times(answer);
	put_sizes(answer, file);
	put(answer, attributes(file), 8);
	put(answer, file, 8);
	put(answer, file, 8);
	put_zeros(answer, 8);
	return file;
}

static void read_file(struct answer *answer, const unsigned char *body)
{
	uint64_t count = number(body + 4, 4), offset = number(body + 8, 8);

	if (offset >= SIZE) {
		answer->status = END_OF_FILE;
		return;
	}
	count = count < SIZE - offset ? count : SIZE - offset;
	put(answer, 17, 2);
	put(answer, HEADER + 16, 2);
	put(answer, count, 4);
	put_zeros(answer, 8 + count);
}

static void query_file(struct answer *answer, uint64_t file)
{
	/* FileAllInformation, whose first parts are other classes. */
	put_times(answer);
	put(answer, attributes(file), 8);
	put_sizes(answer, file);
	put(answer, 1, 4);
	put(answer, (uint64_t)is_directory(file) << 8, 4);
	put(answer, file, 8);
	put(answer, 0, 4);
	put(answer, 0x001f01ff, 4);
	put_zeros(answer, 16);
	put(answer, 2, 4);
	put_zeros(answer, 4);
}

static void query(struct answer *answer, const unsigned char *body, uint64_t file)
{
	unsigned int type = body[2], class = body[3];
	size_t start = answer->size + 8;

	put(answer, 9, 2);
	put(answer, HEADER + 8, 2);
	put(answer, 0, 4);
	if (type == OF_FILE && class == 18) {
		query_file(answer, file);
	} else if (type == OF_FILE && class == 6) {
		put(answer, file, 8);
	} else if (type == OF_FILE_SYSTEM && class == 5) {
		put(answer, 3, 4);
		put(answer, 255, 4);
		put(answer, 8, 4);
		memcpy(answer->start + answer->size, u"NTFS", 8);
		answer->size += 8;
	} else if (type == OF_FILE_SYSTEM && class == 4) {
		put(answer, 7, 4);
		put(answer, 0, 4);
	} else {
		answer->status = NOT_SUPPORTED;
	}
	set(answer->start + start - 4, answer->size - start, 4);
}

/* Answers one request, which may be for the file that the one before it has opened. */
static void serve(struct answer *answer, const unsigned char *request, uint64_t *file)
{
	const unsigned char *body = request + HEADER;
	unsigned int command = number(request + 12, 2);
	uint64_t credits = number(request + 14, 2);

	memcpy(answer->start, request, HEADER);
	set(answer->start + 14, credits < 1 ? 1 : credits > 64 ? 64 : credits, 2);
	set(answer->start + 16, RESPONSE | (number(request + 16, 4) & RELATED), 4);
	set(answer->start + 20, 0, 4);
	set(answer->start + 40, 1, 8);
	answer->size = HEADER;
	answer->status = 0;
	if (command == NEGOTIATE) {
		negotiate(answer);
	} else if (command == SESSION_SETUP) {
		set_up_session(answer, body);
	} else if (command == TREE_CONNECT) {
		connect_tree(answer, body);
	} else if (command == CREATE) {
		*file = create(answer, body);
	} else if (command == CLOSE) {
		put(answer, 60, 2);
		put_zeros(answer, 58);
	} else if (command == READ) {
		read_file(answer, body);
	} else if (command == WRITE) {
		put(answer, 17, 4);
		put(answer, number(body + 4, 4), 4);
		put_zeros(answer, 8);
	} else if (command == QUERY_INFO) {
		uint64_t given = number(body + 24, 8);

		query(answer, body, given == UINT64_MAX ? *file : given);
	} else if (command == SET_INFO) {
		put(answer, 2, 2);
	} else if (command == QUERY_DIRECTORY) {
		answer->status = NO_SUCH_FILE;
	} else if (command == IOCTL || command == CHANGE_NOTIFY) {
		answer->status = NOT_SUPPORTED;
	} else {
		put(answer, 4, 4);
	}
	if (answer->status && answer->status != MORE_PROCESSING) {
		answer->size = HEADER;
		put(answer, 9, 2);
		put_zeros(answer, 7);
	}
	set(answer->start + 8, answer->status, 4);
}

static bool receive(int client, unsigned char *to, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t got = read(client, to + done, size - done);

		if (got <= 0)
			return false;
		done += got;
	}
	return true;
}

/* Answers the requests of a connection; what came while the server was silent is lost. */
static void converse(int client)
{
	static unsigned char request[MAX_MESSAGE], response[2 * MAX_MESSAGE];
	uint32_t length;

	while (receive(client, (unsigned char *)&length, 4)) {
		unsigned char *at = request;
		struct answer answer = {response + 4, 0, 0};
		uint64_t file = 0;
		size_t next;

		length = ntohl(length) & 0xffffff;
		if (length < HEADER || length > sizeof(request) || !receive(client, request, length))
			return;
		if (!access("/stop", F_OK) || number(request + 12, 2) == CANCEL)
			continue;
		do {
			next = number(at + 20, 4);
			serve(&answer, at, &file);
			if (next) {
				put_zeros(&answer, -answer.size & 7);
				set(answer.start + 20, answer.size, 4);
			}
			answer.start += answer.size;
			at += next;
		} while (next && at + HEADER < request + length);
		length = htonl(answer.start - response - 4);
		memcpy(response, &length, 4);
		if (write(client, response, answer.start - response) < 0)
			return;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in place = {.sin_family = AF_INET};
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (argc != 3 || inet_pton(AF_INET, argv[1], &place.sin_addr) != 1)
		return 1;
	place.sin_port = htons(atoi(argv[2]));
	if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&place, sizeof(place)) || listen(listener, 8)) {
		perror("smb-server");
		return 1;
	}
	if (fork())
		return 0;
	for (;;) {
		int client = accept(listener, NULL, NULL);

		if (client >= 0 && fork() == 0) {
			converse(client);
			_exit(0);
		}
		close(client);
	}
}
