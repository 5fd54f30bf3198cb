/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guest's only program. As process 1 it executes the steps of a scenario, one after the
 * other, and reports over the second serial port what the kernel counted.
 */
#ifndef LAB_H
#define LAB_H

#include <stdbool.h>
#include <stddef.h>

#define CGROUPS "/sys/fs/cgroup"

struct step {
	char *verb;
	int cpu; /* -1: where it happens to run */
	char *arg[16];
	int args;
};

/* steps.c */
void run_steps(struct step *step, size_t count);
void write_text(const char *path, const char *text);
void make_directories(const char *path);
void pin(int cpu);

/* names.c: the names of files, and what is done to many of them */
size_t expand(char *out, size_t size, const char *pattern, unsigned long number);
void files(char **arg);
void missing(char **arg);
void remove_files(char **arg);
void hold(char **arg);

/* cgroups.c */
void cgroup_make(const char *name);
void cgroup_join(const char *name);
void cgroup_remove(const char *name);
void churn(const char *directory);

/* truth.c */
void truth_init(void);
void note_begin(const char *action);
void note_text(const char *key, const char *value);
void note_number(const char *key, long value);
void note_memcg(const char *name);
void note_end(void);
void record(const char *name, const char *path, int reads, int reads_after);
void record_now(const char *name, const char *path);
void record_output(const char *name, char **command);
void truth(const char *phase, int settle_ms);
void truth_again(const char *phase);
void wait_for_host(bool busy);
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* crash.c */
void crash_load(const char *kernel, const char *initrd, const char *command_line);
void crash_prepare(void);
void crash_now(void);
void copy_sparse(const char *source, const char *device);

#endif
