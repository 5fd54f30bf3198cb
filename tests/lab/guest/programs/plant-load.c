// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Plants names of all kinds, and lists them in /planted, a line each: "KIND NAME".
 * "plant-load names DIRECTORY" does it, "plant-load blocked DIRECTORY" in a frozen file system.
 *
 * Names are letters in alternating case, which nothing else has, so that also a piece of a name is
 * found in memory by its own. The processes go on until the guest ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PATH 8192

static uint64_t state;

static void check(int is_bad, const char *what)
{
	if (!is_bad)
		return;
	fprintf(stderr, "plant-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

/* Returns a new name of so many letters, and lists it. */
static const char *name(const char *kind, int length)
{
	char *text = malloc((size_t)length + 1);
	FILE *list = fopen("/planted", "a");

	check(!text || !list, "list");
	for (int i = 0; i < length; i++) {
		state = state * 6364136223846793005 + 1442695040888963407;
		text[i] = (char)((i % 2 ? 'G' : 'g') + (state >> 33) % 20);
	}
	text[length] = 0;
	fprintf(list, "%s %s\n", kind, text);
	fclose(list);
	return text;
}

static char *join(const char *format, ...)
{
	char *text;
	va_list arguments;

	va_start(arguments, format);
	check(vasprintf(&text, format, arguments) < 0, "memory");
	va_end(arguments);
	return text;
}

/* Starts a process, whose names are others than those of its parent; returns whether this is it. */
static int is_child(void)
{
	pid_t pid = fork();

	check(pid < 0, "fork");
	if (pid == 0)
		state += (uint64_t)getpid() << 40;
	return pid == 0;
}

static void write_to(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	check(file < 0 || write(file, text, strlen(text)) < 0, path);
	close(file);
}

static void stay(void)
{
	for (;;)
		pause();
}

/* File names, links, extended attributes and contents. */
static void plant_files(const char *in, const char *where)
{
	static const int lengths[] = {12, 24, 60, 120}, targets[] = {16, 64, 256, 900};
	char *path, kind[64];
	struct stat status;

	for (int i = 0; i < 4; i++) {
		sprintf(kind, "file-%s", where);
		path = join("%s/%s", in, name(kind, lengths[i]));
		sprintf(kind, "content-%s", where);
		write_to(path, name(kind, 40));
		sprintf(kind, "xattr-%s", where);
		setxattr(path, join("trusted.%s", name(kind, 20)), name(kind, 30), 30, 0);
		sprintf(kind, "removed-%s", where);
		path = join("%s/%s", in, name(kind, lengths[i]));
		write_to(path, "x");
		check(unlink(path), path);
		sprintf(kind, "missing-%s", where);
		path = join("%s/%s", in, name(kind, lengths[i]));
		check(!stat(path, &status), path);
		sprintf(kind, "link-%s", where);
		const char *link = name(kind, 14);
		path = join("%s/%s", in, link);
		sprintf(kind, "target-%s", where);
		check(symlink(name(kind, targets[i]), path), path);
		check(readlink(path, kind, sizeof(kind)) < 0, path);
		stat(path, &status);
	}
}

static void plant_hosts(void)
{
	const char *host = name("host", 16);

	check(sethostname(host, 16), "host");
	check(setdomainname(name("domain", 18), 18), "domain");
	if (is_child()) { /* another namespace, with a process */
		check(unshare(CLONE_NEWUTS) || sethostname(name("host-other", 20), 20), "host");
		check(setdomainname(name("domain-other", 20), 20), "domain");
		if (fork())
			_exit(0);
		stay();
	}
	wait(NULL);
	write_to("/run/uts", "");
	if (is_child()) { /* another one, which is only mounted */
		check(unshare(CLONE_NEWUTS) || sethostname(name("host-mounted", 20), 20), "host");
		check(mount("/proc/self/ns/uts", "/run/uts", NULL, MS_BIND, NULL), "uts");
		_exit(0);
	}
	wait(NULL);
}

static void plant_sockets(void)
{
	for (int i = 0; i < 3; i++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		const char *text = name("socket", 30);
		int file = socket(AF_UNIX, SOCK_STREAM, 0);

		if (i) /* abstract */
			memcpy(address.sun_path + 1, text, 30);
		else
			sprintf(address.sun_path, "/run/%s", text);
		check(bind(file, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 36), text);
		check(listen(file, 1), text);
	}
}

static void plant_interface(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int file = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(request.ifr_newname, name("interface", 14));
	check(file < 0 || ioctl(file, SIOCSIFNAME, &request), "interface");
	close(file);
}

static void plant_texts(void)
{
	char kind[] = "mount";

	for (int i = 0; i < 3; i++) {
		char *path = join("/mnt/%s", name("mount-point", 15));

		mkdir("/mnt", 0755);
		mkdir(path, 0755);
		check(mount(name(kind, 12 << i), path, "tmpfs", 0, NULL), path);
		check(syscall(SYS_add_key, "user", name("key", 24), name("payload", 32), 32,
			      KEY_SPEC_SESSION_KEYRING) < 0 && errno != ENOSYS, "key");
		write_to("/dev/kmsg", join("a %s of /srv/%s: %s\n", name("log", 10),
					   name("log", 20), name("log", 7)));
	}
	write_to("/proc/sys/kernel/poweroff_cmd", join("/sbin/%s", name("sysctl", 24)));
	write_to("/proc/sys/kernel/modprobe", join("/sbin/%s", name("sysctl", 24)));
	/* There is no such program, so the log has its name, and that of the process. */
	write_to("/proc/sys/kernel/core_pattern", join("|/sbin/%s %%e", name("sysctl", 24)));
	for (int i = 0; i < 2; i++)
		if (is_child()) {
			prctl(PR_SET_NAME, name("crashed", 15));
			raise(SIGSEGV);
		} else
			wait(NULL);
}

/* Processes with names, arguments and variables. */
static void plant_processes(void)
{
	for (int i = 0; i < 3; i++) {
		const char *comm = name("process", 15);
		char *arguments[] = {"plant-load", "stay", (char *)comm,
				     (char *)name("argument", 40), NULL};
		char *variables[] = {join("TOKEN=%s", name("variable", 40)), NULL};

		if (is_child()) {
			execve("/bin/plant-load", arguments, variables);
			_exit(1);
		}
		if (is_child()) {
			prctl(PR_SET_NAME, name("exited", 15));
			_exit(0);
		}
	}
	sleep(1);
}

/* Makes a system call with text in the registers that the kernel's functions save. */
static void call(long number, const char *first, const char *second, const char *text)
{
	uint64_t words[6];

	memcpy(words, text, sizeof(words));
	register uint64_t r12 asm("r12") = words[0], r13 asm("r13") = words[1];
	register uint64_t r14 asm("r14") = words[2], r15 asm("r15") = words[3];
	register uint64_t r8 asm("r8") = words[4], r9 asm("r9") = words[5];
	long result;

	asm volatile("movq %3, %%xmm0\n\tmovq %4, %%xmm1\n\tsyscall"
		     : "=a"(result)
		     : "a"(number), "D"(first), "r"(r12), "r"(r13), "S"(second), "d"(0755L), "r"(r14),
		       "r"(r15), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory", "xmm0", "xmm1");
	errno = (int)-result;
	check(result < 0, first);
}

/* Tasks that create and rename, and wait for the thaw of a file system. */
static void plant_blocked(const char *in, const char *old)
{
	for (int i = 0; i < 4; i++) {
		if (!is_child())
			continue;
		const char *text = name("register", 48);
		char *path = join("%s/%s", in, name("created", i % 2 ? 80 : 20));

		prctl(PR_SET_NAME, name("blocked", 15));
		if (i < 2)
			call(SYS_mkdir, path, path, text);
		else
			call(SYS_rename, join("%s/%s-%d", in, old, i), path, text);
		stay();
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (!strcmp(argv[1], "stay")) {
		prctl(PR_SET_NAME, argv[2]);
		stay();
	}
	if (!strcmp(argv[1], "blocked")) {
		state = 1 << 20;
		plant_blocked(argv[2], "file");
		sleep(1);
		return 0;
	}
	mkdir("/run", 0755);
	plant_hosts();
	plant_files(argv[2], "disk");
	plant_files("/run", "memory");
	plant_sockets();
	plant_interface();
	plant_texts();
	plant_processes();
	return 0;
}
