# SPDX-License-Identifier: LGPL-2.1-or-later
"""Super blocks, mounts and dentries that write themselves into a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drgn import Object

from tests.unit.fakekernel.machine import Machine
from tests.unit.fakekernel.types import Table, add_types


@dataclass(frozen=True)
class FileEra:
    """What kernels of an era have, as far as dentries and mounts go."""

    name: str
    hlist: bool = True
    """``d_children``/``d_sib`` (6.8) rather than ``d_subdirs``/``d_child``."""
    shortname: bool = True
    """``d_shortname`` (6.14) rather than ``d_iname``."""
    child_in_union: bool = False
    """``d_u.d_child`` (until 3.18)."""
    type_shift: int = 19
    """Where in ``d_flags`` the type of entry stands."""
    enum: bool = True
    """``enum dentry_flags`` is visible (6.17)."""
    hash_mask: bool = False
    """``d_hash_mask`` (until 4.15)."""
    negative_counter: bool = True
    """``nr_dentry_negative`` (5.0)."""
    renamed_cache: bool = False
    """``__dentry_cache`` (7.0)."""
    own_mount_list: bool = False
    """``mount.mnt_next_for_sb``."""


FILE_ERAS = {
    era.name: era
    for era in (
        FileEra(
            "RHEL 7.4",
            hlist=False,
            shortname=False,
            child_in_union=True,
            type_shift=24,
            enum=False,
            hash_mask=True,
            negative_counter=False,
        ),
        FileEra(
            "4.14",
            hlist=False,
            shortname=False,
            type_shift=20,
            enum=False,
            hash_mask=True,
            negative_counter=False,
        ),
        FileEra(
            "4.18",
            hlist=False,
            shortname=False,
            type_shift=20,
            enum=False,
            negative_counter=False,
        ),
        FileEra("5.10", hlist=False, shortname=False, type_shift=20, enum=False),
        FileEra("6.12", shortname=False, type_shift=20, enum=False),
        FileEra("6.15", enum=False),
        FileEra("7.3", renamed_cache=True, own_mount_list=True),
    )
}


def _types(era: FileEra) -> Table:
    children = (
        "152 struct hlist_node d_sib\n168 struct hlist_head d_children"
        if era.hlist
        else "144 struct list_head d_child\n160 struct list_head d_subdirs"
    )
    if era.child_in_union:
        children = "144 union dentry_u d_u\n160 struct list_head d_subdirs"
    mounts = "struct mount *" if era.own_mount_list else "struct list_head"
    link = (
        "112 struct mount * mnt_next_for_sb"
        if era.own_mount_list
        else "112 struct list_head mnt_instance"
    )
    return {
        "struct hlist_node": (16, "0 struct hlist_node * next\n8 struct hlist_node ** pprev"),
        "struct hlist_head": (8, "0 struct hlist_node * first"),
        "struct hlist_bl_node": (
            16,
            "0 struct hlist_bl_node * next\n8 struct hlist_bl_node ** pprev",
        ),
        "struct hlist_bl_head": (8, "0 struct hlist_bl_node * first"),
        "struct qstr": (16, "0 unsigned int hash\n4 unsigned int len\n8 const char * name"),
        "union dentry_u": (16, "0 struct list_head d_child"),
        "struct lockref": (8, "0 unsigned int lock\n4 int count"),
        "union shortname_store": (40, "0 char [40] string"),
        "struct dentry": (
            200,
            f"""0 unsigned int d_flags
            8 struct hlist_bl_node d_hash
            24 struct dentry * d_parent
            32 struct qstr d_name
            48 struct inode * d_inode
            56 {"union shortname_store d_shortname" if era.shortname else "char [40] d_iname"}
            96 struct super_block * d_sb
            104 struct lockref d_lockref
            120 struct list_head d_lru
            {children}
            184 struct hlist_node d_alias""",
        ),
        "struct inode": (
            64,
            """0 unsigned int i_fsnotify_mask
            8 void * i_fsnotify_marks
            16 struct super_block * i_sb""",
        ),
        "struct file_system_type": (64, "8 const char * name"),
        "struct super_block": (
            256,
            f"""8 struct list_head s_list
            24 unsigned int s_dev
            32 struct file_system_type * s_type
            40 struct dentry * s_root
            48 {mounts} s_mounts
            64 char [32] s_id
            96 const char * s_subtype""",
        ),
        "struct vfsmount": (24, "0 struct dentry * mnt_root\n8 struct super_block * mnt_sb"),
        "struct mount": (
            256,
            f"""16 struct mount * mnt_parent
            24 struct dentry * mnt_mountpoint
            32 struct vfsmount mnt
            {link}
            152 struct mnt_namespace * mnt_ns""",
        ),
        "struct mnt_namespace": (64, ""),
        "struct nsproxy": (64, "8 struct mnt_namespace * mnt_ns"),
        "struct pid_namespace": (64, "8 struct task_struct * child_reaper"),
        "struct task_struct": (64, "16 struct list_head tasks\n32 struct nsproxy * nsproxy"),
    }


class FakeFiles:
    """Super blocks, mounts and dentries in a machine.

    :param era: one of :data:`FILE_ERAS` by name, or any other :class:`FileEra`
    :param room: addresses for dentries, from a slab cache for example; by default the heap
    :param names: addresses for names that do not fit into a dentry
    """

    def __init__(
        self,
        machine: Machine,
        era: str | FileEra = "7.3",
        room: Iterator[int] | None = None,
        names: Iterator[int] | None = None,
    ) -> None:
        self.machine = k = machine
        self.era = FILE_ERAS[era] if isinstance(era, str) else era
        self.room, self.names = room, names
        # The machine's own task_struct has no namespaces.
        add_types(k.prog, _types(self.era), "files")
        k.list_init(k.variable("super_blocks", "struct list_head"))
        self.home = k.alloc("struct mnt_namespace")
        nsproxy, reaper = k.alloc("struct nsproxy"), k.alloc("struct task_struct")
        k.set(nsproxy.mnt_ns, self.home)
        k.set(reaper.nsproxy, nsproxy)
        k.set(k.variable("init_pid_ns", "struct pid_namespace").child_reaper, reaper)
        self._types: dict[str, Object] = {}

    def super_block(self, type_: str, id_: bytes, device: int = 0, subtype: bytes = b"") -> Object:
        """A super block with a root dentry."""
        k = self.machine
        if type_ not in self._types:
            self._types[type_] = k.alloc("struct file_system_type")
            k.set(self._types[type_].name, k.string(type_.encode()))
        super_block = k.alloc("struct super_block", alone=True)
        k.set(super_block.s_type, self._types[type_])
        k.write(super_block.s_id.address_, id_)
        k.set(super_block.s_dev, device)
        if subtype:
            k.set(super_block.s_subtype, k.string(subtype))
        if not self.era.own_mount_list:
            k.list_init(super_block.s_mounts)
        k.list_add_tail(super_block.s_list, k.prog["super_blocks"])
        k.set(super_block.s_root, self.dentry(b"/", None, super_block))
        return super_block

    def dentry(self, name: bytes, parent: Object | None, super_block: Object) -> Object:
        """A dentry with a name and a parent, without one its own; not in the hash table."""
        k = self.machine
        if self.room is None:
            dentry = k.alloc("struct dentry")
        else:
            dentry = Object(k.prog, "struct dentry", address=next(self.room))
        inline = dentry.d_shortname.string if self.era.shortname else dentry.d_iname
        external = len(name) >= 40
        if not external:
            k.write(inline.address_, name + b"\0")
        if external and self.names is not None:
            place = next(self.names) + 16
            k.write(place, name + b"\0")
        else:
            place = k.string(name) if external else int(inline.address_)
        k.set(dentry.d_name.name, place)
        k.set(dentry.d_name.len, len(name))
        k.set(dentry.d_parent, dentry if parent is None else parent)
        k.set(dentry.d_sb, super_block)
        return dentry

    def path(self, text: str, super_block: Object) -> Object:
        """Hashed dentries all the way down from the root; the last one."""
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
        """A mount.

        :param on: the mount and the dentry that it is mounted on; None for the topmost
        :param root: a dentry of the super block, its root by default
        :param namespace: that of init by default
        """
        k = self.machine
        mount = k.alloc("struct mount", alone=True)
        parent, point = on or (mount, super_block.s_root[0])
        k.set(mount.mnt_parent, parent)
        k.set(mount.mnt_mountpoint, point)
        k.set(mount.mnt.mnt_root, super_block.s_root[0] if root is None else root)
        k.set(mount.mnt.mnt_sb, super_block)
        k.set(mount.mnt_ns, self.home if namespace is None else namespace)
        if self.era.own_mount_list:
            k.set(mount.mnt_next_for_sb, k.word(super_block.s_mounts.address_))
            k.set(super_block.s_mounts, mount)
        else:
            k.list_add_tail(mount.mnt_instance, super_block.s_mounts)
        return mount
