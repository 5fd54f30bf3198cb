# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs on the machine before the files are removed, or replaced: $1 tells. It must not fail, or the
# package could not be removed.
case ${1-} in
remove | 0)
    now=$([ ! -d /run/systemd/system ] || echo --now)
    # shellcheck disable=SC2086
    ! command -v systemctl >/dev/null || systemctl --quiet disable $now @UNITS@ || true
    ;;
esac
if cd /opt/kcensus/lib/python@PYTHON@/site-packages 2>/dev/null; then
    for module in @MODULES@ __pycache__; do
        [ ! -d "$module" ] || find "$module" -name __pycache__ -prune -exec rm -rf {} + || true
    done
fi
