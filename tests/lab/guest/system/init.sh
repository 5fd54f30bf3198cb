#!/bin/busybox sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Process 1 in the initial RAM disk of a guest with Debian: mounts its disks, and hands over.
set -e
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /system
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order

mount -t ext4 /dev/vda /system
mount -t ext4 -o ro /dev/vdb /system/srv/kernel
mount -t ext4 -o ro /dev/vdc /system/srv/kcensus
mount -o bind /system/srv/kernel/modules /system/usr/lib/modules
mount -o bind /system/srv/kernel/debug /system/usr/lib/debug

# What QEMU gives to every guest.
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up

umount /proc /sys
mount -o move /dev /system/dev
exec switch_root /system /sbin/init
