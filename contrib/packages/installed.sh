# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs on the machine after the files have been installed; build.py fills in the words between at signs.
cd /opt/kcensus/lib/python@PYTHON@/site-packages || exit 1
# Bytecode is made here: nobody but root could save it later, and root's would outlive the package.
/opt/kcensus/bin/python3 -m compileall -q @MODULES@ >/dev/null || true
# Linkers filled these libraries up with zeros: as holes, they take 100 MB less.
for library in drgn.libs/*.so*; do
    [ -f "$library" ] || continue
    cp --preserve=all --sparse=always "$library" "$library.new"
    mv "$library.new" "$library"
done
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # One that runs has the code of before the upgrade.
    for unit in @RESTARTED@; do systemctl --quiet try-restart "$unit" || true; done
fi
