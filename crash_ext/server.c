/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "server.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "protocol.h"
#include "target.h"

/* Receive exactly `size` bytes. Return false if the child ends or a signal arrives before. */
static bool receive(struct child *child, void *buffer, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t got = recv(child->socket, (char *)buffer + done, size - done, MSG_DONTWAIT);

		if (got > 0)
			done += got;
		else if (!got || (errno != EAGAIN && errno != EINTR))
			return false;
		else if (!child_wait(child, POLLIN))
			return false;
	}
	return true;
}

/* Send a reply. Return false if the child ends or a signal arrives before. */
static bool reply(struct child *child, enum status status, const char *payload, size_t length)
{
	struct header header = { .length = length, .kind = status };
	struct iovec parts[2] = {
		{ &header, sizeof header },
		{ (void *)payload, length },
	};
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	while (parts[0].iov_len || parts[1].iov_len) {
		ssize_t sent = sendmsg(child->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		int i;

		if (sent < 0) {
			if (errno != EAGAIN && errno != EINTR)
				return false;
			if (!child_wait(child, POLLOUT))
				return false;
			continue;
		}
		for (i = 0; i < 2; i++) {
			size_t part = (size_t)sent < parts[i].iov_len ? (size_t)sent
								      : parts[i].iov_len;

			parts[i].iov_base = (char *)parts[i].iov_base + part;
			parts[i].iov_len -= part;
			sent -= part;
		}
	}
	return true;
}

static bool is_sound(const struct read_request *request)
{
	return request->size && request->size <= MAX_REPLY &&
	       (request->space == SPACE_PHYSICAL || request->space == SPACE_VIRTUAL) &&
	       request->address + (request->size - 1) >= request->address;
}

/* Return the length of the payload of a request; -1 for an unknown kind. */
static long length_of(uint32_t kind)
{
	switch (kind) {
	case REQUEST_HELLO:
	case REQUEST_VMCOREINFO:
	case REQUEST_CPUS:
		return 0;
	case REQUEST_READ:
		return sizeof(struct read_request);
	}
	return -1;
}

static bool answer(struct child *child, uint32_t kind, const struct read_request *read,
		   char *buffer)
{
	uint32_t status = STATUS_COMPLETE;
	size_t length = 0;

	switch (kind) {
	case REQUEST_HELLO:
		length = target_hello(buffer, MAX_REPLY);
		break;
	case REQUEST_VMCOREINFO:
		length = target_vmcoreinfo(buffer, MAX_REPLY);
		status = length ? STATUS_COMPLETE : STATUS_UNKNOWN;
		break;
	case REQUEST_CPUS:
		length = target_cpus(buffer, MAX_REPLY);
		break;
	case REQUEST_READ:
		length = target_read(read, buffer, &status);
		break;
	}
	return reply(child, status, buffer, length);
}

enum outcome serve(struct child *child, char *buffer)
{
	struct header header;
	struct read_request read;
	enum outcome end = OUTCOME_SILENT;

	/* Look for signals each time: receive() does not wait if a request is always ready. */
	while (child_look(child) && receive(child, &header, sizeof header)) {
		if (length_of(header.kind) != (long)header.length)
			return OUTCOME_BROKEN;
		end = OUTCOME_CLOSED;
		if (!receive(child, &read, header.length))
			break;
		if (header.kind == REQUEST_READ && !is_sound(&read))
			return OUTCOME_BROKEN;
		if (!answer(child, header.kind, &read, buffer))
			break;
	}
	/* A signal that came with the end of the connection is still pending. */
	return child_look(child) ? end : OUTCOME_INTERRUPTED;
}
