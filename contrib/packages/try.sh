#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Installs packages in a clean Debian, uses them, and removes them: no file may stay. Needs root and
# debootstrap. Packages for RPM are tried there, too, with Debian's rpm and a Python of that version.
set -eu
if [ $# -lt 4 ]; then
    echo "usage: $0 SUITE CACHE EXPECTED PACKAGE...
EXPECTED is \`kcensus report sample --json\`; CACHE keeps a new Debian of the suite." >&2
    exit 2
fi
# In namespaces of its own: whatever is mounted or left running ends with it.
[ "${TRYING-}" ] || exec env TRYING=yes unshare --mount --pid --fork "$0" "$@"
suite=$1 cache=$2 expected=$3
shift 3
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null; rm -rf "$root" "$root.log"' EXIT

say() { printf '%s, %s: %s\n' "${0##*/}" "$suite" "$*" >&2; }
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/ chroot "$root" "$@"; }
quietly() { "$@" >"$root.log" 2>&1 </dev/null || { cat "$root.log" >&2; exit 1; }; }
apt() { quietly inside env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@"; }
# The cache of man-db and the database of rpm grow whatever is installed.
files() { (cd "$root" && find . -xdev ! -path './tmp/*' ! -path './var/cache/man/*' ! -path './var/lib/rpm/*' -printf '%p %M %u:%g %l\n' | sort); }
megabytes() { du -sm "$root/opt/kcensus" | cut -f1; }

mkdir -p "$cache"
chmod 755 "$root" # mktemp lets nobody else in
if [ ! -e "$cache/$suite.tar" ]; then
    say "making a new one"
    quietly debootstrap --variant=minbase "$suite" "$root"
    tar -C "$root" -cf "$cache/$suite.part" . && mv "$cache/$suite.part" "$cache/$suite.tar"
else
    tar -C "$root" -xf "$cache/$suite.tar"
fi
chmod 755 "$root"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mount -t proc proc "$root/proc"
chmod 1777 "$root/dev/shm" # debootstrap does not
apt update
case $1 in
*.deb) needs=$(dpkg-deb -f "$1" Depends | sed 's/([^)]*)//g; s/,//g') ;;
*.rpm) needs="rpm $(rpm -qp --requires "$1" | sed -n 's|/usr/bin/||p') libstdc++6 zlib1g" ;;
esac
# shellcheck disable=SC2086
apt install $needs man-db bash-completion
case $1 in *.rpm) quietly inside rpm --initdb ;; esac
mkdir "$root/tmp/packages"
cp "$@" "$root/tmp/packages/"
files >"$root/tmp/before"

install() { # PACKAGE: with what it needs from Debian
    case $1 in
    *.deb) apt install --reinstall "/tmp/packages/${1##*/}" ;;
    *.rpm)
        # Its plugins want a root that is a file system.
        quietly inside rpm --noplugins -U --nodeps --replacepkgs "/tmp/packages/${1##*/}"
        [ ! -s "$root.log" ] || { cat "$root.log" >&2; exit 1; }
        ;;
    esac
}

use() { # what everybody does first, without root
    inside su nobody -s /bin/sh -c 'kcensus report sample --json' >"$root/tmp/report" ||
        { grep -A 5 '"failed"' "$root/tmp/report" >&2; exit 1; }
    cmp "$root/tmp/report" "$expected"
    inside kcensus report sample --top 1 | grep -q 10,000
}

install "$1"
say "${1##*/} takes $(megabytes) MB"
use
inside kcensus --version
pages=$(cd "$root" && find usr/share/man -name 'kcensus*.1')
for page in $pages; do
    page=${page##*/}
    inside man -P cat "${page%.1}" | grep -q "^SYNOPSIS\|^NAME"
done
[ "$(echo "$pages" | grep -c .)" -ge 20 ] # a page for each command
inside bash -c '. /usr/share/bash-completion/bash_completion
    _comp_load kcensus 2>/dev/null || _completion_loader kcensus || [ $? = 124 ]
    complete -p kcensus >/dev/null
    COMP_WORDS=(kcensus repo) COMP_CWORD=1
    _kcensus_completion kcensus repo kcensus 2>/dev/null # compopt
    echo "completion of repo: ${COMPREPLY[*]}"; [ "${COMPREPLY[*]}" = report ]'
inside kcensus trend sample-series 2>/dev/null && exit 1 || [ $? = 3 ]
inside /opt/kcensus/bin/drgn --version
shift
for package; do
    install "$package"
    say "with ${package##*/}: $(megabytes) MB"
    inside kcensus record sample --store /tmp/series
    inside kcensus trend sample-series >/dev/null
    inside /opt/kcensus/bin/python3 -c 'import numpy.testing, pandas.testing, pyarrow.compute
import deltalake, networkx, pyarrow.parquet, scipy.cluster.hierarchy, scipy.stats'
done
# Again, as an update does it.
for package in "$root"/tmp/packages/kcensus[_-][0-9]*; do install "$package"; done
use
case ${package##*/} in
*.deb) apt purge 'kcensus*' ;;
*.rpm) quietly inside rpm --noplugins -e --nodeps $(inside rpm -qa 'kcensus*') ;;
esac
files >"$root/tmp/after"
diff "$root/tmp/before" "$root/tmp/after" || { say "these files stay, or changed"; exit 1; }
say "nothing stays"
