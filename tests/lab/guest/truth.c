// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * What the kernel counts, read and sent without changing the counts.
 *
 * Every file is opened and read once before it matters, so that the reads that count find all
 * their buffers allocated. What they return goes out through the second serial port from user
 * space: between the last read and the dump this program makes no system call.
 */
#define _GNU_SOURCE
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 0x2f8
#define LINE_STATUS (PORT + 5)
#define DATA_READY 0x01
#define TRANSMITTER_EMPTY 0x20
#define FIFO_SIZE 16

#define RECORDS 256
#define BETWEEN_READS_MS 100

static struct record {
	char name[128];
	int file;
	int reads;
	int reads_after;
} records[RECORDS];
static int record_count;

/* What is still to be sent. */
static char arena[8 << 20];
static size_t arena_used;

/* Shared, because the processes inside the cgroups add to it. */
static struct notes {
	size_t used;
	char text[4 << 20];
} *notes;
/* The memory cgroup of this process, if it is not the root. */
static const char *memcg;

void truth_init(void)
{
	if (ioperm(PORT, 8, 1) < 0)
		_exit(1);
	outb(0x07, PORT + 2); /* enable and clear the FIFOs */
	notes = mmap(NULL, sizeof(*notes), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (notes == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
}

static void send(const char *bytes, size_t length)
{
	while (length) {
		size_t burst = length < FIFO_SIZE ? length : FIFO_SIZE;

		while (!(inb(LINE_STATUS) & TRANSMITTER_EMPTY))
			__builtin_ia32_pause();
		for (size_t i = 0; i < burst; i++)
			outb((unsigned char)bytes[i], PORT);
		bytes += burst;
		length -= burst;
	}
}

void fail(const char *format, ...)
{
	char text[1024] = "\nFAIL ";
	va_list list;

	va_start(list, format);
	vsnprintf(text + 6, sizeof(text) - 8, format, list);
	va_end(list);
	strcat(text, "\n");
	send(text, strlen(text));
	for (;;)
		pause();
}

/*
 * The host spells the answer. busy: wait without a single system call.
 */
void wait_for_host(bool busy)
{
	while (!(inb(LINE_STATUS) & DATA_READY)) {
		if (busy)
			__builtin_ia32_pause();
		else
			usleep(20000);
	}
	inb(PORT);
}

static void note_raw(const char *text)
{
	size_t length = strlen(text);

	if (notes->used + length >= sizeof(notes->text))
		fail("too many notes");
	memcpy(notes->text + notes->used, text, length);
	notes->used += length;
}

/* Bytes that are no ASCII become what Python's surrogateescape makes of them. */
static void note_string(const char *prefix, const char *text)
{
	char escaped[8];

	note_raw("\"");
	note_raw(prefix);
	for (; *text; text++) {
		unsigned char byte = (unsigned char)*text;

		if (byte >= 0x80)
			sprintf(escaped, "\\udc%02x", byte);
		else if (byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7f)
			sprintf(escaped, "\\u00%02x", byte);
		else
			sprintf(escaped, "%c", byte);
		note_raw(escaped);
	}
	note_raw("\"");
}

void note_begin(const char *action)
{
	note_raw(notes->used ? ",\n{\"do\": " : "{\"do\": ");
	note_string("", action);
}

void note_text(const char *key, const char *value)
{
	note_raw(", ");
	note_string("", key);
	note_raw(": ");
	note_string("", value);
}

void note_number(const char *key, long value)
{
	char text[32];

	note_raw(", ");
	note_string("", key);
	snprintf(text, sizeof(text), ": %ld", value);
	note_raw(text);
}

void note_memcg(const char *name)
{
	memcg = name;
}

void note_end(void)
{
	if (memcg) {
		note_raw(", \"memcg\": ");
		note_string("/", memcg);
	}
	note_raw("}");
}

static void append(const char *name, const char *content, size_t length)
{
	if (arena_used + length + 256 > sizeof(arena))
		fail("no room for %s", name);
	arena_used += (size_t)sprintf(arena + arena_used, "FILE %s %zu\n", name, length);
	memcpy(arena + arena_used, content, length);
	arena_used += length;
}

static void append_file(const char *name, int file)
{
	static char content[1 << 20];
	size_t length = 0;
	ssize_t got;

	/* A seq_file that starts over at 0 keeps the buffer it has. */
	if (lseek(file, 0, SEEK_SET) < 0)
		fail("seek in %s: %s", name, strerror(errno));
	while ((got = read(file, content + length, sizeof(content) - length)) > 0)
		length += (size_t)got;
	if (got < 0)
		fail("read %s: %s", name, strerror(errno));
	append(name, content, length);
}

/* To be read when the workload is done: reads times, and reads_after times after the dump. */
void record(const char *name, const char *path, int reads, int reads_after)
{
	struct record *new = &records[record_count++];

	if (record_count > RECORDS)
		fail("too many records");
	snprintf(new->name, sizeof(new->name), "%s", name);
	new->reads = reads;
	new->reads_after = reads_after;
	new->file = open(path, O_RDONLY | O_CLOEXEC);
	if (new->file < 0)
		fail("open %s: %s", path, strerror(errno));
}

void record_now(const char *name, const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		fail("open %s: %s", path, strerror(errno));
	append_file(name, file);
	close(file);
}

void record_output(const char *name, char **command)
{
	static char content[1 << 18];
	size_t length = 0;
	ssize_t got;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0)
		fail("pipe: %s", strerror(errno));
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		execv(command[0], command);
		_exit(127);
	}
	close(ends[1]);
	while ((got = read(ends[0], content + length, sizeof(content) - length)) > 0)
		length += (size_t)got;
	close(ends[0]);
	if (waitpid(child, &status, 0) < 0 || status)
		fail("%s failed with status %#x", command[0], status);
	append(name, content, length);
}

static void send_phase(const char *phase)
{
	char line[64];

	send(line, (size_t)sprintf(line, "\nBEGIN %s\n", phase));
	send(arena, arena_used);
	send(line, (size_t)sprintf(line, "END %s\n", phase));
	arena_used = 0;
}

static void read_records(bool after)
{
	char name[160];

	for (int i = 0; i < record_count; i++) {
		int reads = after ? records[i].reads_after : records[i].reads;
		const char *suffix = after ? ".after" : "";

		for (int j = 0; j < reads; j++) {
			if (reads == 1)
				snprintf(name, sizeof(name), "%s%s", records[i].name, suffix);
			else
				snprintf(name, sizeof(name), "%s%s.%d", records[i].name, suffix,
					 j);
			append_file(name, records[i].file);
			if (j + 1 < reads)
				usleep(BETWEEN_READS_MS * 1000);
		}
	}
}

void truth(const char *phase, int settle_ms)
{
	size_t start;

	append("notes", notes->text, notes->used);
	if (mlockall(MCL_CURRENT) < 0)
		fail("mlockall: %s", strerror(errno));
	start = arena_used;
	read_records(false);
	arena_used = start;
	usleep((useconds_t)settle_ms * 1000);
	read_records(false);
	send_phase(phase);
}

void truth_again(const char *phase)
{
	read_records(true);
	send_phase(phase);
}
