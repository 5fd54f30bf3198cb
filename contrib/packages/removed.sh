# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs on the machine after the files have been removed.
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
# dpkg removes /opt, too, where nothing else is in it.
[ "${1-}" != purge ] || [ -e /opt ] || mkdir -m 755 /opt
