#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Load for a guest with Debian: "load start|freeze|thaw|alive|stop". All of it is in one cgroup.
set -eu
programs=/srv/kcensus/bin
cgroup=/sys/fs/cgroup/load
scheduler=${SCHEDULER:-bfq}
export DM_DISABLE_UDEV=1 # there is none, so dmsetup makes the files of devices itself

start() {
    modprobe "$scheduler" 2>/dev/null || true # built in, on some kernels
    echo "$scheduler" >/sys/block/vdd/queue/scheduler
    # vdd has a file system of 400 MiB, a device of 48 MiB, and space for the copies of a snapshot.
    modprobe dm-snapshot
    dmsetup create files --table "0 819200 linear /dev/vdd 0"
    dmsetup create real --table "0 98304 linear /dev/vdd 819200"
    dmsetup create cow --table "0 131072 linear /dev/vdd 917504"
    mkfs.xfs -q /dev/mapper/files
    mkdir -p /srv/load
    mount /dev/mapper/files /srv/load
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p $cgroup/files $cgroup/containers
    echo +memory >$cgroup/cgroup.subtree_control
    echo +memory >$cgroup/containers/cgroup.subtree_control
    (
        echo 0 >$cgroup/files/cgroup.procs
        exec </dev/null >/srv/load/log 2>&1
        setsid $programs/churn files /srv/load/files &
        setsid $programs/churn containers /run/containers $cgroup/containers &
        setsid $programs/churn disk /srv/load/data &
        setsid "$0" copies &
    )
}

# Overwrite a device whose snapshot copies what was there, and make a new snapshot at its end.
copies() {
    while :; do
        dd if=/dev/zero of=/dev/mapper/cow bs=64k count=1 oflag=direct status=none
        dmsetup create copy --table "0 98304 snapshot /dev/mapper/real /dev/mapper/cow P 8"
        dmsetup create origin --table "0 98304 snapshot-origin /dev/mapper/real"
        $programs/churn copies /dev/mapper/origin
        dmsetup remove origin
        dmsetup remove copy
    done
}

# Ends when all tasks of the cgroup stand still.
freeze() {
    echo 1 >$cgroup/cgroup.freeze
    rounds=0
    until grep -qx 'frozen 1' $cgroup/cgroup.events; do
        rounds=$((rounds + 1))
        if [ $rounds -gt 600 ]; then
            ps -eo pid,stat,wchan:32,cgroup,comm | grep /load >&2
            exit 1
        fi
        sleep 0.1
    done
    # What they have started ends too: writeback, and memory that RCU frees.
    sync
    sleep 2
}

stop() {
    thaw
    # One that starts meanwhile is found in the next round.
    while grep -qx 'populated 1' $cgroup/cgroup.events; do
        find $cgroup -name cgroup.procs -exec cat {} + 2>/dev/null | xargs -r kill -KILL || true
    done
}

# Whether all of it still runs.
alive() {
    [ "$(pgrep -c -P 1 -x 'churn|load')" -eq 4 ]
}

thaw() {
    echo 0 >$cgroup/cgroup.freeze
}

case ${1:-} in
start | freeze | thaw | alive | stop | copies) "$1" ;;
*)
    echo "usage: load start|freeze|thaw|alive|stop" >&2
    exit 2
    ;;
esac
