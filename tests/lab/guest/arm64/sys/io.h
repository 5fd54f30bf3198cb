/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The three functions of <sys/io.h> that the guest's program calls, for arm64: there are no
 * instructions for ports. QEMU's `virt` machine maps them to memory, and a PCI card has the second
 * serial port. As on x86, a port is read and written without a system call.
 *
 * The kernel must be booted with iomem=relaxed, since its driver claims the card.
 */
#ifndef LAB_ARM64_SYS_IO_H
#define LAB_ARM64_SYS_IO_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* hw/arm/virt.c of QEMU: VIRT_PCIE_PIO. */
#define LAB_PORTS 0x3eff0000UL
#define LAB_PORTS_SIZE 0x10000UL
#define LAB_SERIAL_CLASS 0x070002UL
#define LAB_DEVICES "/.ports/bus/pci/devices"

#define __builtin_ia32_pause() __asm__ volatile("yield")

static volatile unsigned char *lab_port;
static unsigned long lab_first;

static unsigned long lab_number(const char *device, const char *file)
{
	char path[512];
	unsigned long number = 0;
	FILE *stream;

	snprintf(path, sizeof(path), LAB_DEVICES "/%s/%s", device, file);
	stream = fopen(path, "re");
	if (!stream || fscanf(stream, "%lx", &number) != 1)
		number = 0;
	if (stream)
		fclose(stream);
	return number;
}

/* The first port of the serial card, as the bus has it; 0 if there is none. */
static unsigned long lab_find_card(void)
{
	unsigned long port = 0;
	struct dirent *entry;
	DIR *devices = opendir(LAB_DEVICES);

	while (devices && (entry = readdir(devices)))
		if (lab_number(entry->d_name, "class") == LAB_SERIAL_CLASS) {
			char path[512];
			int file;

			/* They are on already if a driver has the card: then this fails. */
			snprintf(path, sizeof(path), LAB_DEVICES "/%s/enable", entry->d_name);
			file = open(path, O_WRONLY | O_CLOEXEC);
			if (file >= 0) {
				(void)!write(file, "1", 1);
				close(file);
			}
			port = lab_number(entry->d_name, "resource");
		}
	if (devices)
		closedir(devices);
	return port;
}

/* Map the ports of the card, whatever `first` and `count` say: they are those of a PC. */
static int ioperm(unsigned long first, unsigned long count, int on)
{
	unsigned long port = 0;
	void *ports;
	int memory;

	(void)count;
	(void)on;
	if (mkdir("/.ports", 0700) < 0 || mount("sysfs", "/.ports", "sysfs", 0, NULL) < 0)
		return -1;
	port = lab_find_card();
	umount("/.ports");
	if (!port || mknod("/.ports/mem", S_IFCHR | 0600, makedev(1, 1)) < 0)
		return -1;
	memory = open("/.ports/mem", O_RDWR | O_SYNC | O_CLOEXEC);
	ports = mmap(NULL, LAB_PORTS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, LAB_PORTS);
	close(memory);
	unlink("/.ports/mem");
	rmdir("/.ports");
	if (ports == MAP_FAILED)
		return -1;
	lab_port = (volatile unsigned char *)ports + port % LAB_PORTS_SIZE;
	lab_first = first;
	return 0;
}

static void outb(unsigned char value, unsigned short port)
{
	lab_port[port - lab_first] = value;
}

static unsigned char inb(unsigned short port)
{
	return lab_port[port - lab_first];
}

#endif
