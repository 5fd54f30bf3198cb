# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running kernel, read through ``/proc/kcore``; reasons for a refusal, and remedies.

All files are looked for below ``root``, which is ``/`` except in tests.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import stat
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import drgn

from kcensus.human import listed
from kcensus.sources.debuginfo import debuginfod
from kcensus.sources.debuginfo.opening import load_debug_info
from kcensus.sources.model import (
    MissingDebugInfo,
    Request,
    Source,
    Target,
    TargetError,
    kernel_release,
)
from kcensus.text import printable

KCORE = "/proc/kcore"
_NAME = "the running kernel"
_CAP_SYS_RAWIO = 17
_FORCED = "CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY"
_MAX_NAMED = 3
_VMCORE = "take a vmcore with kdump and pass it"
_ELSEWHERE = f"or {_VMCORE}"
# PROC_PID_INIT_INO and PROC_USER_INIT_INO of include/linux/proc_ns.h.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_FIRST_USER_NAMESPACE = "user:[4026531837]"


def _open(request: Request) -> Target:
    prog = drgn.Program()
    try:
        prog.set_kernel()
    except MemoryError:
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(f"{_NAME}: {refusal(error)}") from error
    # Not shareable: since Linux kernel commit 17457784004c ("fs/proc/kcore: reinstate bounce buffer
    # for KCORE_TEXT regions") (in v6.5), as in older kernels, /proc/kcore copies through one page
    # per open file without a lock, so workers that inherit drgn's descriptor would get each
    # other's bytes.
    name, kernel = request.spec or _NAME, kernel_release(prog)
    target = Target(prog, name, kind="live", format="live", live=True, kernel=kernel, facts=_facts)
    try:
        return load_debug_info(target, request.symbols, request.shared)
    except MissingDebugInfo as error:
        if request.symbols or request.shared:
            raise
        raise TargetError(f"{error}{missing_debug_info(kernel, error.build_id)}") from error


def _facts() -> list[tuple[str, str, str]]:
    values = hardening()
    return [("hardening", "hardening", f"{values} (no obstacle)")] if values else []


def refusal(error: Exception, root: Path = Path("/")) -> str:
    """Return a printable line with the reason why drgn raised ``error``, and the next step."""
    for reason in (_absent, _masked, _unprivileged, _locked_down):
        if why := reason(root):
            return why
    if isinstance(error, PermissionError):
        return (
            f"permission denied for {KCORE}, although root may read it: SELinux, AppArmor or "
            f"kernel lockdown denies it (see `dmesg`); allow it, {_ELSEWHERE}"
        )
    why = f"cannot be read (drgn: {printable(str(error))})"
    if _sysctl(root, "kptr_restrict") == "2":
        # Before Linux kernel commit 464920104bf7 ("/proc/kcore: update physical address for kcore
        # ram and text") (in v4.11), drgn needs the address of a symbol.
        why += "; on kernels before 4.11, set kernel.kptr_restrict to 1"
    return f"{why}; pass a vmcore"


def _absent(root: Path) -> str:
    """Return the reason for a missing ``/proc/kcore``; empty if there is one."""
    if os.path.lexists(_at(root, KCORE)):
        return ""
    if not _at(root, "/proc/version").exists():
        return (
            f"{KCORE} does not exist: /proc is not mounted, or shows processes only, as with "
            "systemd's ProcSubset=pid; run kcensus where all of /proc is mounted"
        )
    if _option(root, "CONFIG_PROC_KCORE") is False:
        return (
            f"this kernel was built without CONFIG_PROC_KCORE, so it lacks {KCORE}, which drgn "
            f"needs to read a running kernel; {_VMCORE}, or run kcensus inside crash, where that "
            "reads /dev/crash or /dev/mem"
        )
    if container := _container(root):
        return f"{KCORE} does not exist in {container}; run kcensus on the host, {_ELSEWHERE}"
    return (
        f"{KCORE} does not exist: this kernel was probably built without CONFIG_PROC_KCORE; "
        f"{_VMCORE}, or run kcensus inside crash"
    )


def _masked(root: Path) -> str:
    """Return the reason for a hidden ``/proc/kcore``; empty if it is not hidden."""
    status = os.stat(_at(root, KCORE))
    # The real one is as large as the address space.
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return ""
    if container := _container(root):
        return f"{KCORE} is masked in {container}; run kcensus on the host, {_ELSEWHERE}"
    return (
        f"{KCORE} is masked, as systemd's ProtectKernelTunables= and InaccessiblePaths= do; run "
        f"kcensus outside of this sandbox, {_ELSEWHERE}"
    )


def _unprivileged(root: Path) -> str:
    """Return the privilege that this process lacks; empty if it has all."""
    status = _read(root, "/proc/self/status")
    user = re.search(r"^Uid:\t\d+\t(\d+)", status, re.MULTILINE)
    if user and user[1] != "0":
        command = _own_command()
        return f"needs root; run {f'`{command}`' if command else 'as root'}, {_ELSEWHERE}"
    if _link(root, "/proc/self/ns/user") not in ("", _FIRST_USER_NAMESPACE):
        where = _container(root) or "a user namespace"
        return f"root of {where} is not root of this kernel; run kcensus on the host, {_ELSEWHERE}"
    effective = re.search(r"^CapEff:\t([0-9a-f]{1,32})$", status, re.MULTILINE)
    if not effective or int(effective[1], 16) >> _CAP_SYS_RAWIO & 1:
        return ""
    if container := _container(root):
        return (
            f"root of {container} lacks CAP_SYS_RAWIO, which {KCORE} needs; run kcensus on the "
            f"host, {_ELSEWHERE}"
        )
    return (
        f"this process lacks CAP_SYS_RAWIO, which {KCORE} needs; run it from a root shell, allow "
        f"the capability in the service (systemd: CapabilityBoundingSet=), {_ELSEWHERE}"
    )


def _locked_down(root: Path) -> str:
    """Return a sentence if kernel lockdown denies even root to read memory; empty if not."""
    # open_kcore() asks for LOCKDOWN_KCORE, which is denied in the mode confidentiality, not in the
    # mode integrity. A mode can only be raised; lowering it takes a boot.
    if lockdown(root) != "confidentiality":
        return ""
    why = f"kernel lockdown is in the mode confidentiality, which denies {KCORE} to root, too"
    if _option(root, _FORCED):
        return f"{why}, and {_FORCED} enforces it at each boot; {_VMCORE}"
    return f"{why}, until reboot; boot with lockdown=integrity, {_ELSEWHERE}"


def missing_debug_info(release: str, build_id: str | None, root: Path = Path("/")) -> str:
    """Return the end of a sentence about missing debug info of the running kernel."""
    added, debug = "", _at(root, "/usr/lib/debug")
    installed = {path.name.removeprefix("vmlinux-") for path in debug.glob("boot/vmlinux-*")}
    installed |= {path.parent.name for path in debug.glob("lib/modules/*/vmlinux*")}
    if others := sorted(installed - {release}):
        added += (
            f"; the installed one is for {printable(listed(others, _MAX_NAMED))}, this machine "
            f"runs {printable(release)}"
        )
        with suppress(OSError):
            # Whether a newer installed kernel boots next.
            images = _at(root, "/boot").glob("vmlinuz-*")
            running = _at(root, f"/boot/vmlinuz-{release}").stat().st_mtime
            if max((path.stat().st_mtime for path in images), default=0) > running:
                added += " until it is rebooted"
    if build_id and debuginfod.current() is None:
        if os.environ.get("DEBUGINFOD_URLS"):
            added += "; or download it with --debuginfod"
        elif any(_at(root, "/etc/debuginfod").glob("*.urls")):
            # sudo drops the variable.
            added += (
                "; or set DEBUGINFOD_URLS to the URLs in /etc/debuginfod/*.urls, and download it "
                "with --debuginfod"
            )
    return added


def lockdown(root: Path = Path("/")) -> str:
    """Return the mode of kernel lockdown: none, integrity or confidentiality; empty if unknown."""
    mode = re.search(r"\[(\w+)\]", _read(root, "/sys/kernel/security/lockdown"))
    return mode[1] if mode else ""


def hardening(root: Path = Path("/")) -> str:
    """Return the settings that hide parts of the running kernel from programs, in one line."""
    names = ("kptr_restrict", "perf_event_paranoid", "dmesg_restrict")
    values = {"lockdown": lockdown(root), **{name: _sysctl(root, name) for name in names}}
    return ", ".join(f"{name} {printable(value)}" for name, value in values.items() if value)


def _sysctl(root: Path, name: str) -> str:
    return _read(root, f"/proc/sys/kernel/{name}").strip()


def _container(root: Path) -> str:
    """Return the kind of container around this process; empty without one."""
    marks = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
    kinds = (kind for mark, kind in marks if _at(root, mark).exists())
    if kind := _read(root, "/run/systemd/container").strip() or next(kinds, ""):
        return f"this container ({printable(kind)})"
    in_first = _link(root, "/proc/self/ns/pid") in ("", _FIRST_PID_NAMESPACE)
    return "" if in_first else "this container"


def _option(root: Path, name: str) -> bool | None:
    """Return whether the running kernel was built with an option; None if no file tells."""
    release = _read(root, "/proc/sys/kernel/osrelease").strip()
    places = ["/proc/config.gz"]
    if release and "/" not in release:
        places += [f"/boot/config-{release}", f"/lib/modules/{release}/config"]
    for place in places:
        text = _read(root, place)
        if re.search(rf"^{name}=y$", text, re.MULTILINE):
            return True
        if re.search(rf"^# {name} is not set$", text, re.MULTILINE):
            return False
    return None


def _own_command() -> str:
    """Return this command line under sudo; empty if the process is not the command ``kcensus``."""
    program, *words = sys.argv
    name = os.path.basename(program)
    if name == "kcensus":
        # sudo has a PATH of its own, which lacks virtual environments.
        command = [os.path.abspath(program)]
    elif name == "__main__.py" and os.path.dirname(program).endswith("kcensus"):
        command = [sys.executable, "-m", "kcensus"]
    else:
        return ""
    symbols = os.environ.get("KCENSUS_SYMBOLS")
    kept = ["env", f"KCENSUS_SYMBOLS={symbols}"] if symbols else []  # sudo drops it otherwise
    return printable(shlex.join(["sudo", *kept, *command, *words]))


def _at(root: Path, place: str) -> Path:
    return root / place.lstrip("/")


def _read(root: Path, place: str) -> str:
    """Return the text of a file, unpacked; empty if it cannot be read."""
    path = _at(root, place)
    with suppress(OSError, EOFError, zlib.error):
        contents = path.read_bytes()
        unpacked = gzip.decompress(contents) if path.suffix == ".gz" else contents
        return unpacked.decode(errors="replace")
    return ""


def _link(root: Path, place: str) -> str:
    with suppress(OSError):
        return os.readlink(_at(root, place))
    return ""


SOURCE = Source(lambda spec: spec in (None, KCORE), _open)
