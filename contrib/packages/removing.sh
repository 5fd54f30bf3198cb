# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs on the machine before the files are removed, or replaced: $1 tells.
case ${1-} in
remove | 0) [ ! -d /run/systemd/system ] || systemctl --quiet disable --now @UNITS@ || true ;;
esac
cd /opt/kcensus/lib/python@PYTHON@/site-packages
find @MODULES@ -name __pycache__ -prune -exec rm -rf {} +
rm -rf __pycache__
