#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Load for a guest with Debian: "load start|freeze|thaw|alive|stop". All of it is in one cgroup.
set -eu
programs=/srv/kcensus/bin
cgroup=/sys/fs/cgroup/load
scheduler=${SCHEDULER:-bfq}

start() {
    modprobe "$scheduler" 2>/dev/null || true # built in, on some kernels
    echo "$scheduler" >/sys/block/vdd/queue/scheduler
    mkfs.xfs -q /dev/vdd
    mkdir -p /srv/load
    mount /dev/vdd /srv/load
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
    )
}

# Ends when all tasks of the cgroup stand still.
freeze() {
    echo 1 >$cgroup/cgroup.freeze
    until grep -qx 'frozen 1' $cgroup/cgroup.events; do
        sleep 0.1
    done
    # What they have started ends too: writeback, and memory that RCU frees.
    sync
    sleep 2
}

stop() {
    thaw
    while read -r process; do
        kill -KILL "$process"
    done <$cgroup/files/cgroup.procs
}

# Whether all of it still runs.
alive() {
    [ "$(pgrep -c -P 1 -x churn)" -eq 3 ]
}

thaw() {
    echo 0 >$cgroup/cgroup.freeze
}

case ${1:-} in
start | freeze | thaw | alive | stop) "$1" ;;
*)
    echo "usage: load start|freeze|thaw|alive|stop" >&2
    exit 2
    ;;
esac
