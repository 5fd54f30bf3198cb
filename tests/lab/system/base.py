# SPDX-License-Identifier: LGPL-2.1-or-later
"""The root file system of a guest: Debian, and a virtual environment with what kcensus needs."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from .. import host
from ..debian import mirror
from ..debian.machines import AMD64
from ..host import say
from . import disk, wheels
from .wheels import LOCK, PYTHON, SUITE

_PACKAGES = (
    *("systemd", "systemd-sysv", "openssh-server", "procps", "kmod", "iproute2", "less"),
    *("dmsetup", "e2fsprogs", "xfsprogs", "python3", "python3-venv"),
)
_MIB = 4096
FILES = Path(__file__).parents[1] / "guest" / "system"

# Without them, a guest boots twice as fast: emulation makes every process take a second.
_MASKED = (
    *(f"modprobe@{name}.service" for name in ("configfs", "dm_mod", "drm", "efi_pstore")),
    *(f"modprobe@{name}.service" for name in ("fuse", "loop")),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-tracing.mount"),
    *("kmod-static-nodes.service", "systemd-modules-load.service", "systemd-sysusers.service"),
    *("systemd-random-seed.service", "systemd-update-utmp.service", "e2scrub_reap.service"),
    *("systemd-update-utmp-runlevel.service", "getty.target"),
    *("systemd-tmpfiles-setup-dev.service", "systemd-remount-fs.service"),
    # These wait for udev, which is not here, and for what does not change in a guest of minutes.
    *("serial-getty@ttyS0.service", "apt-daily.timer", "apt-daily-upgrade.timer"),
    *("dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer", "systemd-tmpfiles-clean.timer"),
)

VENV = "opt/kcensus"
WHEELS = "srv/wheels"
"""What `requirements.lock` names, for those who install kcensus as a user does."""

CODE = "srv/kcensus"
"""Where the disk with the checkout's kcensus is mounted."""


@dataclass(frozen=True)
class Base:
    """The root file system, which all guests share and none changes."""

    path: Path
    machine: str = AMD64

    @property
    def tree(self) -> Path:
        """Its files, to run its programs on this machine."""
        return self.path / "tree"

    @property
    def disk(self) -> Path:
        """The same as an image of a disk."""
        return self.path / "root.ext4"

    @property
    def key(self) -> Path:
        """The private key of ssh for root and for `load`, a user without privileges."""
        return self.path / "key"

    def run(self, *command: str) -> str:
        """Run a program of the root file system on this machine, and return what it prints."""
        return wheels.enter(self.tree, *command)


def base(machine: str) -> Base:
    """The root file system of an architecture, from the cache or made now.

    What it runs itself, this machine runs: for another one, with QEMU's emulation of a user's
    programs (package qemu-user-static).
    """
    digest = hashlib.sha256(repr((SUITE, _PACKAGES, _MIB, machine)).encode() + LOCK.read_bytes())
    for path in [Path(__file__), Path(wheels.__file__), *sorted(FILES.glob("*.service"))]:
        digest.update(path.read_bytes())
    final = host.cache() / "systems" / f"base-{digest.hexdigest()[:12]}"
    wheels.emulate(machine)
    if not final.is_dir():
        host.install_packages()
        with host.locked(final.name):
            if not final.is_dir():
                with host.new_directory(final) as directory:
                    _make(Base(directory, machine))
    return Base(final, machine)


def _make(made: Base) -> None:
    made.tree.mkdir()
    host.run(["tar", "-xf", str(_debian(made.machine)), "--numeric-owner", "-C", str(made.tree)])
    say(f"root file system of {SUITE}: installing what kcensus needs")
    made.tree.joinpath(CODE).mkdir(parents=True)
    _install(made)
    _set_up(made)
    disk.make(made.disk, made.tree, _MIB, "-L", "root")


def _debian(machine: str) -> Path:
    """Return an archive of Debian's packages as installed, from the cache or made now."""
    of = () if machine == AMD64 else (machine,)
    key = hashlib.sha256(repr((SUITE, _PACKAGES, *of)).encode()).hexdigest()[:12]
    final = host.cache() / "systems" / f"debian-{key}"
    with host.locked(final.name):
        if not final.is_dir():
            suite = mirror.Suite(SUITE, machine)
            suite.update()
            say(f"root file system of {SUITE}: unpacking")
            with host.new_directory(final) as directory:
                command = ["mmdebstrap", "--quiet", "--variant=minbase"]
                command += [f"--architectures={machine}", f"--include={','.join(_PACKAGES)}"]
                command += ["--skip=output/dev", "--skip=check/qemu"]
                target = str(directory / "debian.tar")
                host.run([*command, SUITE, target, str(suite.sources)])
    return final / "debian.tar"


def _set_up(made: Base) -> None:
    """Make the users, and the services that a guest needs."""
    tree = made.tree
    host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(made.key)])
    made.run("useradd", "--create-home", "--shell", "/bin/bash", "load")
    for home, user in (("root", "root"), ("home/load", "load")):
        keys = tree / home / ".ssh" / "authorized_keys"
        keys.parent.mkdir(exist_ok=True)
        keys.parent.chmod(0o700)
        shutil.copy(made.key.with_suffix(".pub"), keys)
        made.run("chown", "-R", f"{user}:", f"/{home}/.ssh")
    (tree / "etc/hostname").write_text("lab\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost lab\n")
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/resolv.conf").write_text("")
    for mount_point in ("dev", "usr/lib/modules", "usr/lib/debug", "srv/kernel"):
        (tree / mount_point).mkdir(exist_ok=True, parents=True)
    for unit in FILES.glob("*.service"):
        shutil.copy(unit, tree / "etc/systemd/system")
        made.run("systemctl", "--quiet", "enable", unit.name)
    made.run("systemctl", "--quiet", "mask", *_MASKED)
    made.run("systemctl", "--quiet", "set-default", "multi-user.target")


def _install(made: Base) -> None:
    directory = made.tree / WHEELS
    directory.mkdir()
    wheels.fetch(made.machine, made.tree, directory)
    made.run("python3", "-m", "venv", "--without-pip", f"/{VENV}")
    site = made.tree / VENV / "lib" / f"python{PYTHON}" / "site-packages"
    wheels.install(made.machine, site, *sorted(directory.glob("*.whl")))
    (site / "kcensus.pth").write_text(f"/{CODE}/lib\n")
    command = made.tree / VENV / "bin" / "kcensus"
    command.write_text(
        f"#!/{VENV}/bin/python\nimport sys\nfrom kcensus.cli import main\n\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    (made.tree / "usr/local/bin/kcensus").symlink_to(f"/{VENV}/bin/kcensus")
    (made.tree / "usr/local/bin/load").symlink_to(f"/{CODE}/bin/load")
