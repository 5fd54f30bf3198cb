// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Creates a RAID 1 with superblocks of version 0.90, which the kernel writes itself:
 * "array-load /dev/mdN MAJOR:MINOR MAJOR:MINOR". The files of md in sysfs cannot do that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/major.h>
#include <linux/raid/md_p.h>
#include <linux/raid/md_u.h>

#define DISKS 2
#define KIB 30720

static void die(const char *what)
{
	fprintf(stderr, "array-load: %s: %s\n", what, strerror(errno));
	_exit(1);
}

int main(int argc, char **argv)
{
	mdu_array_info_t array = {
		.patch_version = 0,
		.major_version = 0,
		.minor_version = 90,
		.level = 1,
		.size = KIB,
		.nr_disks = DISKS,
		.raid_disks = DISKS,
		.state = 1 << MD_SB_CLEAN,
		.active_disks = DISKS,
		.working_disks = DISKS,
	};
	int node;

	if (argc != 2 + DISKS)
		return 2;
	node = open(argv[1], O_RDWR | O_CLOEXEC);
	if (node < 0)
		die(argv[1]);
	if (ioctl(node, SET_ARRAY_INFO, &array) < 0)
		die("SET_ARRAY_INFO");
	for (int i = 0; i < DISKS; i++) {
		mdu_disk_info_t disk = {
			.number = i,
			.raid_disk = i,
			.state = 1 << MD_DISK_ACTIVE | 1 << MD_DISK_SYNC,
		};

		if (sscanf(argv[2 + i], "%d:%d", &disk.major, &disk.minor) != 2)
			return 2;
		if (ioctl(node, ADD_NEW_DISK, &disk) < 0)
			die("ADD_NEW_DISK");
	}
	if (ioctl(node, RUN_ARRAY, NULL) < 0)
		die("RUN_ARRAY");
	return 0;
}
