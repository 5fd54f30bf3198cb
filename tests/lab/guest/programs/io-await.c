// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Waits until tasks sleep as a scenario promises: "io-await FUNCTION COUNT SECONDS LIMIT" returns
 * when COUNT tasks have been in state D for SECONDS without a break, with FUNCTION on their stacks,
 * and fails if that is not so after LIMIT seconds.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TASKS 65536
#define PAUSE_US 500000

/* By PID: how often it has slept, and since when it sleeps in the function. */
static struct {
	unsigned long switches;
	double since;
} tasks[TASKS];

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns the text of a file of a task; an empty one if the task is gone. */
static const char *text_of(int pid, const char *name)
{
	static char text[1 << 16];
	char path[64];
	size_t length = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	file = fopen(path, "re");
	if (file) {
		length = fread(text, 1, sizeof(text) - 1, file);
		fclose(file);
	}
	text[length] = '\0';
	return text;
}

static bool sleeps_in(int pid, const char *function)
{
	char call[128];

	snprintf(call, sizeof(call), "] %s+", function);
	return strstr(text_of(pid, "stack"), call) != NULL;
}

/* Returns whether a task has slept in a function for some time, as far as was seen. */
static bool is_asleep(int pid, const char *function, double seconds)
{
	const char *status = text_of(pid, "status");
	const char *switches = strstr(status, "\nvoluntary_ctxt_switches:");
	unsigned long count = switches ? strtoul(strchr(switches, ':') + 1, NULL, 10) : 0;

	if (!strstr(status, "\nState:\tD") || !sleeps_in(pid, function)) {
		tasks[pid].since = 0;
		return false;
	}
	if (!tasks[pid].since || tasks[pid].switches != count) {
		tasks[pid].switches = count;
		tasks[pid].since = now();
	}
	return now() - tasks[pid].since >= seconds;
}

int main(int argc, char **argv)
{
	double end;

	if (argc != 5)
		return 2;
	for (end = now() + atof(argv[4]); now() < end; usleep(PAUSE_US)) {
		DIR *directory = opendir("/proc");
		struct dirent *entry;
		int count = 0;

		while (directory && (entry = readdir(directory)) != NULL) {
			int pid = atoi(entry->d_name);

			if (pid > 0 && pid < TASKS)
				count += is_asleep(pid, argv[1], atof(argv[3]));
		}
		if (directory)
			closedir(directory);
		if (count >= atoi(argv[2]))
			return 0;
	}
	fprintf(stderr, "io-await: no %s tasks sleep in %s for %s s\n", argv[2], argv[1], argv[3]);
	return 1;
}
