# SPDX-License-Identifier: LGPL-2.1-or-later
"""The script for the first boot after a crash, on the vmcore of a guest that really crashed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import host
from tests.lab.dumps import shared_kernel
from tests.lab.image import Archive
from tests.lab.system import running
from tests.sample.collect.test_archive import manifest_of, unpacked

pytestmark = [pytest.mark.usually, pytest.mark.kernels("6.1")]

_ROOT = Path(__file__).parents[3]
_SCRIPT = _ROOT / "contrib" / "kdump" / "kcensus-kdump"
_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
_SAVED = "the vmcore is saved"
_INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /mnt /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
mount -t ext4 /dev/vdd /mnt
free -m
mkdir /mnt/crash
makedumpfile -l -d 31 /proc/vmcore /mnt/crash/vmcore && sync && umount /mnt && echo "{_SAVED}"
poweroff -f
"""
_END = "Power down"
_SECONDS = 600.0


def _initrd(kernel: str, path: Path) -> Path:
    found = shared_kernel(kernel)
    archive = Archive()
    archive.add("init", _INIT.encode())
    archive.add("bin/busybox", Path(host.find("busybox")).read_bytes())
    archive.add_program("makedumpfile")
    order = found.closure(_MODULES)
    archive.add("modules/order", "".join(f"{name}\n" for name in order).encode(), 0o100644)
    for name in order:
        if module := found.module(name):
            archive.add(f"modules/{name}.ko", module.read_bytes(), 0o100644)
    path.write_bytes(archive.content())
    return path


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture(scope="module")
def crash(kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as /var/crash, with what the crash kernel saved."""
    directory = tmp_path_factory.mktemp("kdump")
    with running(kernel, boot="crashkernel=256M") as guest:
        guest.put(shared_kernel(kernel).image, "/run/vmlinuz")
        guest.put(_initrd(kernel, directory / "initrd"), "/run/initrd")
        guest.put(Path(__file__).with_name("kexec.py"), "/run/kexec.py")
        line = "console=ttyS0 nr_cpus=1 reset_devices clearcpuid=141"
        guest.run(f"python3 /run/kexec.py /run/vmlinuz /run/initrd '{line}'").check()
        assert guest.run("cat /sys/kernel/kexec_crash_loaded").check() == "1\n"
        guest.run("mkfs.ext4 -q /dev/vdd && sync").check()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.run("nohup sh -c 'sleep 1; echo c >/proc/sysrq-trigger' >/dev/null 2>&1 &")
        until = time.monotonic() + _SECONDS
        place = guest.qmp.parent
        console = ""
        while not (_END in console or time.monotonic() > until):
            time.sleep(1)
            console = _text(place / "console.log")
        assert _SAVED in console, console[-3000:]
        (directory / "20261128").mkdir()
        saved = directory / "20261128" / "vmcore"
        host.run(["debugfs", "-R", f"dump /crash/vmcore {saved}", str(place / "load")])
    return directory


def test_the_script_collects_once(crash: Path, tmp_path: Path) -> None:
    command = tmp_path / "kcensus"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kcensus "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "KCENSUS": str(command)}
    out = crash / "20261128" / "kcensus-case.tar.zst"
    (crash / "20261128" / "vmcore-dmesg.txt").write_text("sysrq\n")
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [_SCRIPT, crash], env=environment, capture_output=True, text=True, check=True
        )
        lines.append(done.stdout.count("collecting from"))
    assert lines == [1, 0]
    files = unpacked(out)
    assert manifest_of(files)["left_out"] == []
    report = json.loads(files["1/report.json"])
    assert "sysrq triggered crash" in report["machine"]["taken_by"]
