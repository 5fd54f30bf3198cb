# SPDX-License-Identifier: LGPL-2.1-or-later
"""Super blocks, mounts and dentries, written into the memory of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import drgn
from drgn import Object

from kcensus.sources.capsule import NotRecorded
from tests.unit.fakekernel.slub import FakeKernel


class FakeFiles:
    """Super blocks, mounts and dentries in a kernel.

    :param room: addresses for dentries, by default on the heap; ``names``: for external names
    """

    def __init__(
        self,
        machine: FakeKernel,
        room: Iterator[int] | None = None,
        names: Iterator[int] | None = None,
    ) -> None:
        self.machine = k = machine
        self.era = k.era
        self.room, self.names = room, names
        self.alone = True
        """Whether super blocks and mounts are on pages of their own."""
        k.list_init(k.variable("super_blocks", "struct list_head"))
        self.home = k.alloc("struct mnt_namespace")
        reaper = k.alloc("struct task_struct", nsproxy=k.alloc("struct nsproxy", mnt_ns=self.home))
        k.set(k.variable("init_pid_ns", "struct pid_namespace").child_reaper, reaper)
        self._types: dict[str, Object] = {}

    def super_block(self, type_: str, id_: bytes, device: int = 0, subtype: bytes = b"") -> Object:
        k = self.machine
        if type_ not in self._types:
            self._types[type_] = k.alloc("struct file_system_type", name=type_.encode())
        super_block = k.alloc("struct super_block", alone=self.alone, s_type=self._types[type_])
        k.fill(super_block, s_id=id_, s_dev=device)
        if subtype:
            k.set(super_block.s_subtype, subtype)
        if not self.era.own_mount_list:
            k.list_init(super_block.s_mounts)
        k.list_add_tail(super_block.s_list, k.prog["super_blocks"])
        k.set(super_block.s_root, self.dentry(b"/", None, super_block))
        return super_block

    def dentry(self, name: bytes, parent: Object | None, super_block: Object) -> Object:
        """Make a dentry that is not hashed; without a parent it is its own."""
        k = self.machine
        if self.room is None:
            dentry = k.alloc("struct dentry")
        else:
            dentry = Object(k.prog, "struct dentry", address=next(self.room))
        inline = dentry.d_shortname.string if self.era.shortname else dentry.d_iname
        external = len(name) >= drgn.sizeof(inline)
        if not external:
            k.write(inline.address_, name + b"\0")
        if external and self.names is not None:
            place = next(self.names) + 16
            k.write(place, name + b"\0")
        else:
            place = k.string(name) if external else int(inline.address_)
        k.fill(dentry.d_name, name=place, len=len(name))
        k.fill(dentry, d_parent=dentry if parent is None else parent, d_sb=super_block)
        return dentry

    def path(self, text: str, super_block: Object) -> Object:
        """Make hashed dentries from the root down and return the last one."""
        dentry = super_block.s_root[0]
        for name in text.strip("/").split("/"):
            dentry = self.dentry(name.encode("utf-8", "surrogateescape"), dentry, super_block)
            self.machine.set(dentry.d_hash.pprev, 1)
        return dentry

    def mount(
        self,
        super_block: Object,
        on: tuple[Object, Object] | None,
        *,
        root: Object | None = None,
        namespace: int | Object | None = None,
    ) -> Object:
        """Make a mount ``on`` a (mount, dentry), or a topmost one; init's namespace by default."""
        k = self.machine
        mount = k.alloc("struct mount", alone=self.alone)
        parent, point = on or (mount, super_block.s_root[0])
        k.fill(mount, mnt_parent=parent, mnt_mountpoint=point)
        root = super_block.s_root[0] if root is None else root
        k.fill(mount.mnt, mnt_root=root, mnt_sb=super_block)
        k.set(mount.mnt_ns, self.home if namespace is None else namespace)
        if namespace is None:
            # Where the era has a counter.
            with suppress(AttributeError, NotRecorded):
                k.set(self.home.nr_mounts, int(self.home.nr_mounts) + 1)
        if self.era.own_mount_list:
            k.set(mount.mnt_next_for_sb, k.word(super_block.s_mounts.address_))
            k.set(super_block.s_mounts, mount)
        else:
            k.list_add_tail(mount.mnt_instance, super_block.s_mounts)
        return mount

    def process(
        self, pid: int, comm: bytes, cwd: Object, opened: Sequence[Object | None]
    ) -> Object:
        """Make a process; ``opened`` has the dentry of each descriptor, None for a closed one."""
        k = self.machine
        entries = k.alloc("struct file *", 8 * max(len(opened), 1))
        for number, dentry in enumerate(opened):
            if dentry is not None:
                file = k.alloc("struct file")
                k.set(file.f_path.dentry, dentry)
                k.write_words(entries.address_ + 8 * number, file.address_)
        table = k.alloc("struct fdtable", max_fds=len(opened), fd=entries.address_)
        fs, files = k.alloc("struct fs_struct"), k.alloc("struct files_struct", fdt=table)
        k.set(fs.pwd.dentry, cwd)
        task = k.alloc("struct task_struct", tgid=pid, comm=comm, fs=fs, files=files)
        k.list_add_tail(task.tasks, k.symbols["init_task"].tasks)
        return task
