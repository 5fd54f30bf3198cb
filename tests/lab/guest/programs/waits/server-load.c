// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Servers that stop to answer, and their clients. "server-load ROLE ARGUMENT..." starts a process
 * that goes on until the guest ends, and returns; "prepare",
 * "freeze" and the mounts return when they are done.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/nbd.h>
#include <linux/nfs_mount.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096
#define MIB (1 << 20)

static int ready[2];

static void die(const char *what)
{
	fprintf(stderr, "server-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static struct sockaddr_in address_of(const char *address, const char *port)
{
	struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};

	if (inet_pton(AF_INET, address, &found.sin_addr) != 1)
		die(address);
	return found;
}

static int listen_at(const char *address, const char *port)
{
	struct sockaddr_in place = address_of(address, port);
	int file = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (file < 0 || setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(file, (struct sockaddr *)&place, sizeof(place)) || listen(file, 8))
		die(address);
	return file;
}

static int connect_to(const char *address, const char *port)
{
	struct sockaddr_in place = address_of(address, port);
	int file = socket(AF_INET, SOCK_STREAM, 0);

	if (file < 0 || connect(file, (struct sockaddr *)&place, sizeof(place)))
		die(address);
	return file;
}

static void wait_forever(void)
{
	for (;;)
		pause();
}

static bool stopped(void)
{
	return access("/stop", F_OK) == 0;
}

static void await(const char *path)
{
	while (access(path, F_OK))
		usleep(20000);
}

static bool move(int from, int to)
{
	static char content[1 << 17];
	ssize_t got = read(from, content, sizeof(content));

	return got > 0 && write(to, content, got) == got;
}

static void relay_one(int client, int server, bool is_silent)
{
	struct pollfd ends[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};

	while (!stopped()) {
		poll(ends, 2, 50);
		if ((ends[0].revents && !move(client, server)) ||
		    (ends[1].revents && !move(server, client)))
			_exit(0);
	}
	if (is_silent)
		wait_forever();
	_exit(0);
}

/*
 * Relays connections to a port of 127.0.0.1 until the file /stop exists; then it closes and refuses
 * them, or, if it is to be "silent", keeps them open.
 */
static void relay(char **arguments)
{
	bool is_silent = !strcmp(arguments[3], "silent");
	int listener = listen_at(arguments[0], arguments[1]);
	struct pollfd end = {listener, POLLIN, 0};

	close(ready[1]);
	while (!stopped()) {
		int client, server;

		if (poll(&end, 1, 50) <= 0)
			continue;
		client = accept(listener, NULL, NULL);
		if (client < 0)
			continue;
		server = connect_to("127.0.0.1", arguments[2]);
		if (fork() == 0)
			relay_one(client, server, is_silent);
		close(client);
		close(server);
	}
	if (is_silent)
		wait_forever();
	_exit(0);
}

/* Brings the loopback device up, and mounts the files that configure a server. */
static void prepare(char **arguments)
{
	struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};

	strcpy(request.ifr_name, "lo");
	if (ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &request) ||
	    mount(arguments[0], arguments[1], arguments[0], 0, NULL))
		die(arguments[0]);
}

/* Registers all services with success, as rpcbind does: lockd does not start without. */
static void register_services(char **arguments)
{
	struct sockaddr_un place = {.sun_family = AF_UNIX, .sun_path = "/var/run/rpcbind.sock"};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	uint32_t call[PAGE / 4];

	(void)arguments;
	mkdir("/var", 0755);
	mkdir("/var/run", 0755);
	if (listener < 0 || bind(listener, (struct sockaddr *)&place, sizeof(place)) ||
	    listen(listener, 8))
		die(place.sun_path);
	close(ready[1]);
	for (;;) {
		int client = accept(listener, NULL, NULL);

		/* A call is a mark, its number, and more; the answer is that number, and "true". */
		if (fork() == 0) {
			while (read(client, call, sizeof(call)) > 8) {
				uint32_t answer[] = {htonl(0x80000000 | 28), call[1], htonl(1), 0,
						     0, 0, 0, htonl(1)};

				if (write(client, answer, sizeof(answer)) < 0)
					break;
			}
			_exit(0);
		}
		close(client);
	}
}

static void freeze(char **path)
{
	int directory = open(path[0], O_RDONLY);

	if (directory < 0 || ioctl(directory, FIFREEZE, 0))
		die(path[0]);
}

static void mount_v4(char **arguments)
{
	char source[64], options[128];

	sprintf(source, "%s:/", arguments[0]);
	sprintf(options, "vers=%s,addr=%s,clientaddr=127.0.0.1,hard", arguments[2], arguments[0]);
	if (mount(source, arguments[1], "nfs4", 0, options))
		die(source);
}

/* The root of an export with fsid=0, without the protocol of mountd. */
static void mount_v3(char **arguments)
{
	static const unsigned char root[] = {1, 0, 1, 0, 0, 0, 0, 0};
	struct nfs_mount_data data = {
		.version = NFS_MOUNT_VERSION,
		.flags = NFS_MOUNT_VER3 | NFS_MOUNT_TCP | NFS_MOUNT_NONLM,
		.timeo = 20,
		.retrans = 3,
		.pseudoflavor = 1,
	};
	char source[64];

	data.addr = address_of(arguments[0], arguments[1]);
	data.root.size = sizeof(root);
	memcpy(data.root.data, root, sizeof(root));
	strcpy(data.hostname, arguments[0]);
	sprintf(source, "%s:/", arguments[0]);
	if (mount(source, arguments[2], "nfs", 0, &data))
		die(source);
}

/* Reads a file past the page cache's end from "/start" on. */
static void read_file(char **path)
{
	static char content[MIB];
	int file = open(path[0], O_RDONLY);

	if (file < 0)
		die(path[0]);
	close(ready[1]);
	await("/start");
	for (;;) {
		posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
		if (pread(file, content, sizeof(content), 0) < 0)
			die(path[0]);
	}
}

static void read_blocks(int file)
{
	static char content[PAGE] __attribute__((aligned(PAGE)));

	for (;;)
		if (pread(file, content, sizeof(content), 0) < 0)
			die("pread");
}

static void read_direct(char **path)
{
	int file = open(path[0], O_RDONLY | O_DIRECT);

	if (file < 0)
		die(path[0]);
	close(ready[1]);
	await("/start");
	read_blocks(file);
}

/* The first one to open a disk that does not answer waits for the table of its partitions. */
static void read_disk(char **path)
{
	int file;

	close(ready[1]);
	file = open(path[0], O_RDONLY | O_DIRECT);
	if (file < 0)
		die(path[0]);
	read_blocks(file);
}

/* Writes a file, and waits for the server to have it. */
static void write_file(char **path)
{
	static char content[MIB];
	int file = open(path[0], O_WRONLY | O_CREAT, 0644);

	if (file < 0)
		die(path[0]);
	close(ready[1]);
	await("/start");
	for (;;)
		if (pwrite(file, content, sizeof(content), 0) < 0 || fsync(file))
			die(path[0]);
}

static void make_directory(char **path)
{
	close(ready[1]);
	await("/start");
	if (mkdir(path[0], 0755))
		die(path[0]);
	wait_forever();
}

static void create_file(char **path)
{
	close(ready[1]);
	await("/start");
	if (open(path[0], O_WRONLY | O_CREAT, 0644) < 0)
		die(path[0]);
	wait_forever();
}

static void list_directory(char **path)
{
	DIR *directory;

	close(ready[1]);
	await("/start");
	directory = opendir(path[0]);
	while (directory && readdir(directory))
		;
	wait_forever();
}

static void look_up(char **path)
{
	struct stat status;

	close(ready[1]);
	await("/start");
	stat(path[0], &status);
	wait_forever();
}

static void answer_nothing(int listener)
{
	static char content[PAGE];
	int file;

	close(ready[1]);
	file = accept(listener, NULL, NULL);

	prctl(PR_SET_NAME, "nbd-server");
	while (file >= 0 && read(file, content, sizeof(content)) > 0)
		;
	wait_forever();
}

/* Accepts connections, and answers nothing. */
static void listen_only(char **arguments)
{
	int listener = listen_at(arguments[0], arguments[1]);

	for (;;)
		answer_nothing(listener);
}

static void mount_smb(char **arguments)
{
	char options[128], source[64];

	sprintf(source, "//%s/share", arguments[0]);
	sprintf(options, "ip=%s,port=%s,vers=2.1,sec=none,unc=\\\\%s\\share", arguments[0],
		arguments[1], arguments[0]);
	close(ready[1]);
	if (mount(source, arguments[2], "cifs", 0, options))
		die(source);
}

/* A client of a network block device whose server reads all requests, and answers none. */
static void network_disk(char **arguments)
{
	int device = open(arguments[0], O_RDWR), listener = listen_at(arguments[1], arguments[2]);

	if (device < 0)
		die(arguments[0]);
	if (fork() == 0)
		answer_nothing(listener);
	prctl(PR_SET_NAME, "nbd-client");
	if (ioctl(device, NBD_SET_BLKSIZE, PAGE) || ioctl(device, NBD_SET_SIZE_BLOCKS, 4096UL) ||
	    ioctl(device, NBD_SET_SOCK, connect_to(arguments[1], arguments[2])))
		die(arguments[0]);
	close(ready[1]);
	if (ioctl(device, NBD_DO_IT))
		die("NBD_DO_IT");
	wait_forever();
}

static const struct role {
	const char *name;
	void (*function)(char **arguments);
	int arguments;
	bool returns;
} roles[] = {
	{"prepare", prepare, 2, true},
	{"freeze", freeze, 1, true},
	{"mount-v3", mount_v3, 3, true},
	{"mount-v4", mount_v4, 3, true},
	{"rpcbind", register_services, 0, false},
	{"relay", relay, 4, false},
	{"nfs-read", read_file, 1, false},
	{"nfs-direct", read_direct, 1, false},
	{"nfs-write", write_file, 1, false},
	{"nfs-mkdir", make_directory, 1, false},
	{"nfs-create", create_file, 1, false},
	{"nfs-list", list_directory, 1, false},
	{"nfs-stat", look_up, 1, false},
	{"smb-server", listen_only, 2, false},
	{"smb-mount", mount_smb, 3, false},
	{"network-disk", network_disk, 3, false},
	{"disk-read", read_disk, 1, false},
};

int main(int argc, char **argv)
{
	char end;

	for (size_t i = 0; argc > 1 && i < sizeof(roles) / sizeof(*roles); i++) {
		const struct role *role = &roles[i];

		if (strcmp(role->name, argv[1]) || argc != 2 + role->arguments)
			continue;
		if (role->returns) {
			role->function(argv + 2);
			return 0;
		}
		if (pipe(ready))
			die("pipe");
		if (fork() == 0) {
			close(ready[0]);
			prctl(PR_SET_NAME, role->name);
			role->function(argv + 2);
			_exit(0);
		}
		close(ready[1]);
		/* Ends when the process closes its end, which it and its children share. */
		if (read(ready[0], &end, 1) < 0)
			die("read");
		return 0;
	}
	fprintf(stderr, "server-load: no such role\n");
	return 1;
}
