#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Compiles Debian's kernel for arm64 with pages of 64 KiB, which Debian does not have: with its
# configuration of the cloud flavour, but only what a guest of the lab needs. It takes about twenty
# minutes of a CPU.
#
# Arguments: the source tree, Debian's configuration, and the directory for the results. Needs bc,
# bison, dwarves, flex, gcc-aarch64-linux-gnu, kmod, libelf-dev and libssl-dev.
set -eu
tree=$1 debian=$2 out=$3
cd "$tree"
export ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab
xzcat "$debian" > .config
# What a guest of the lab needs as a module; all other modules go.
modules="brd xfs ext4 jbd2 mbcache crc16 libcrc32c crc32c_generic dm_mod dm_bufio dm_snapshot dm_delay dm_mirror dm_log
 dm_region_hash dm_thin_pool dm_persistent_data dm_bio_prison dm_multipath dm_round_robin raid1 md_mod loop fuse cuse nbd
 virtio virtio_ring virtio_pci virtio_pci_modern_dev virtio_pci_legacy_dev virtio_blk virtio_net net_failover
 failover virtio_console virtio_scsi virtio_mmio virtio_rng virtio_balloon scsi_mod scsi_common sd_mod qemu_fw_cfg mq_deadline bfq
 kyber_iosched null_blk"
for m in $modules; do echo "$m 1 0"; done | sed '1iModule Size Used' > lsmod.txt
make LSMOD=$PWD/lsmod.txt localmodconfig < /dev/null > localmod.log 2>&1 || { yes "" | make LSMOD=$PWD/lsmod.txt localmodconfig > localmod.log 2>&1; }
c() { scripts/config "$@"; }
c -d ARM64_4K_PAGES -d ARM64_16K_PAGES -e ARM64_64K_PAGES -e ARM64_VA_BITS_52 -d ARM64_VA_BITS_48
c --set-str LOCALVERSION -64k -d LOCALVERSION_AUTO --set-str BUILD_SALT ""
c -e KALLSYMS_ALL -e DEBUG_FS -e DEBUG_INFO_BTF -e DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT -d DEBUG_INFO_REDUCED -d DEBUG_INFO_COMPRESSED_ZLIB
c -d MODULE_SIG -d MODULE_SIG_ALL -d MODULE_COMPRESS -d MODULE_COMPRESS_ALL --set-str SYSTEM_TRUSTED_KEYS "" -d SECURITY_LOCKDOWN_LSM
c -e SERIAL_AMBA_PL011 -e SERIAL_AMBA_PL011_CONSOLE -e VMCORE_INFO -e CRASH_DUMP -m FW_CFG_SYSFS -m BLK_DEV_RAM
c -d DRM -d SOUND -d USB_SUPPORT -d WIRELESS -d WLAN -d BT -d NETFILTER -d IPV6 -d MPTCP -d KVM -d VIRTUALIZATION -d XEN -d HYPERV
c -d SECURITY_SELINUX -d SECURITY_APPARMOR -d SECURITY_TOMOYO -d SECURITY_SMACK -d INTEGRITY -d IMA -d EVM -d AUDIT -d SECURITY_LANDLOCK -d SECURITY_YAMA
c -d FTRACE -d BPF_LSM -d LIVEPATCH -d MEDIA_SUPPORT -d INPUT -d HID -d IIO -d HWMON -d THERMAL -d CPU_FREQ -d RC_CORE -d MTD -d REGULATOR
c -d ACPI -d INFINIBAND -d NET_SCHED -d BRIDGE -d VLAN_8021Q -d XFRM_USER -d INET_ESP -d NETLABEL -d TLS -d NFS_FS -d CIFS -d BTRFS_FS
c -d ETHERNET -d PHYLIB -d MFD_CORE -d I2C -d SPI -d GPIOLIB -d PINCTRL -d TCG_TPM -d FB -d VT -d LOGO -d NVME_CORE -d ATA -d CORESIGHT -d RAS -d EDAC
c -d CRYPTO_USER_API_HASH -d CRYPTO_HW -d DEBUG_INFO_NONE -e FUSE_FS -m XFS_FS -m EXT4_FS
c -e MEMCG -e BLK_CGROUP -e BFQ_GROUP_IOSCHED -e PSI -e DETECT_HUNG_TASK -m IOSCHED_BFQ -m MQ_IOSCHED_KYBER -m MQ_IOSCHED_DEADLINE -e MAGIC_SYSRQ -e SLAB_FREELIST_HARDENED -e SLAB_FREELIST_RANDOM
c -m DM_DELAY -m DM_SNAPSHOT -m DM_MIRROR -m DM_THIN_PROVISIONING -m DM_MULTIPATH -m MD_RAID1
yes "" | make olddefconfig > olddef.log 2>&1
# Drivers of boards; not the platforms themselves, on which much depends.
boards='^(COMMON_CLK_|QCOM_(A|C|G|H|L|R|S)|[A-Z]+_(GCC|DISPCC|GPUCC|VIDEOCC|CAMCC)_|.*_GCC_|MSM_|SERIAL_MSM|PHY_QCOM
|INTERCONNECT|USB|MARVELL|HW_RANDOM_HISTB|REGULATOR|RESET_QCOM|POWER_RESET|SENSORS|DW_|SND|VFIO|MAILBOX|EXTCON|WATCHDOG
|TEE|RC_|NVMEM|STAGING|MEMSTICK|MMC|LEDS|UIO|PWM|RAS|RPMSG|REMOTEPROC|HWSPINLOCK|BCM|CHROME|CROS|SOUNDWIRE|SLIMBUS|IIO
|HID|PTP|DEVFREQ|PM_DEVFREQ|FPGA|HTE|MUX|NTB|IPACK|COUNTER|MOST|SIOX|GREYBUS|ANDROID|DAX|LIBNVDIMM|CXL|EDAC
|RTC_DRV_(XGENE|EFI|SUN|M4)|SPMI|HSI|PCCARD|CONNECTOR|PARPORT|I3C|SPI|I2C|VHOST)'
for option in $(sed -n 's/^CONFIG_\(.*\)=y$/\1/p' .config | grep -E "$(tr -d '\n' <<< "$boards")"); do c -d "$option"; done
yes "" | make olddefconfig > olddef.log 2>&1
nice make -j"$(nproc)" Image modules > build.log 2>&1
mkdir -p "$out"
make INSTALL_MOD_PATH="$out/root" modules_install >> build.log 2>&1
cp vmlinux arch/arm64/boot/Image "$out/"
make -s kernelrelease > "$out/release"
