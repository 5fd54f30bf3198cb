# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up files of ``/proc/sys``, ``/sys`` and ``/sys/fs/cgroup`` in the kernel's own tables."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator

import drgn
from drgn import Object, container_of, sizeof

from kcensus.engine.chase import circular
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED, decode_array, name_at

_MAX_ENTRIES = 1 << 16
"""Most entries of a directory. The largest have one per network device or slab cache."""
_MAX_DEPTH = 16
_MAX_FILES = 1 << 10
"""Most files in an array of the memory controller, and most arrays."""


def has_knob(kernel: Kernel, path: str) -> bool | None:
    """Return whether a kernel has a file; None where that cannot be determined.

    :param path: a file below ``/proc/sys``, ``/sys/module/MODULE/parameters``,
        ``/sys/kernel/slab/CACHE``, or ``memory.…`` below ``/sys/fs/cgroup``: whether the memory
        controller has it, in any cgroup
    """
    with contextlib.suppress(*DAMAGED):
        for directory, look_up in _LOOK_UPS.items():
            if path.startswith(directory):
                return look_up(kernel, path[len(directory) :].split("/"))
    return None


def knobs(kernel: Kernel) -> Iterator[str]:
    """Yield the path of each file below ``/proc/sys``, unordered, except files of namespaces.

    :raises LookupError: the debug info lacks a type
    :raises drgn.FaultError: a table is unreadable
    :raises ValueError: a table is damaged
    """
    directories = [("/proc/sys", _sysctl_root(kernel.prog), 0)]
    while directories:
        path, directory, depth = directories.pop()
        if depth > _MAX_DEPTH:
            raise ValueError("sysctl directories are nested too deep")
        for name, (mode, child) in _sysctls(directory).items():
            if stat.S_ISDIR(mode):
                directories.append((f"{path}/{name}", child, depth + 1))
            elif stat.S_ISREG(mode):
                yield f"{path}/{name}"


def _has_sysctl(kernel: Kernel, path: list[str]) -> bool | None:
    mode, directory = stat.S_IFDIR, _sysctl_root(kernel.prog)
    for name in path:
        if not stat.S_ISDIR(mode) or (entry := _sysctls(directory).get(name)) is None:
            return False
        mode, directory = entry
        if stat.S_ISLNK(mode):  # into the tables of each namespace
            return None
    return stat.S_ISREG(mode)


def _sysctl_root(prog: drgn.Program) -> Object:
    return prog["sysctl_table_root"].default_set.dir


def _sysctls(directory: Object) -> dict[str, tuple[int, Object]]:
    """Return modes of the entries of a ``struct ctl_dir``, and ``ctl_dir`` of directories.

    Since Linux kernel v3.4 (commit not verified), node *i* in the red-black tree of a directory
    belongs to element *i* of the table of its ``struct ctl_table_header``.
    """
    node_size = sizeof(directory.prog_.type("struct ctl_node"))
    entries = {}
    for rb_node in _tree(directory.root.rb_node):
        node = container_of(rb_node, "struct ctl_node", "node")
        header = node.header
        index, rest = divmod(int(node) - int(header.node), node_size)
        if rest or not 0 <= index < _MAX_ENTRIES:
            raise ValueError("a node is not in the array of its header")
        if header.unregistering:
            continue
        table = header.ctl_table[index]
        mode = int(table.mode)
        if not stat.S_IFMT(mode):  # the tables of files hold only permissions
            mode |= stat.S_IFREG
        entries[name_at(table.procname)] = mode, container_of(header, "struct ctl_dir", "header")
    return entries


def _has_sysfs_file(kset: str) -> Callable[[Kernel, list[str]], bool]:
    """Return the look-up of files in a directory of sysfs with a ``struct kset`` variable.

    Since Linux kernel commit 324a56e16e44 ("kernfs: s/sysfs_dirent/kernfs_node/ and rename its
    friends accordingly") (in v3.14), a directory has a red-black tree of ``struct kernfs_node``.
    """

    def look_up(kernel: Kernel, path: list[str]) -> bool:
        node = kernel.prog[kset].kobj.sd
        for name in path:
            node = _kernfs_child(node, name.encode())
            if node is None:
                return False
        return True

    return look_up


def _has_slab_file(kernel: Kernel, path: list[str]) -> bool | None:
    with contextlib.suppress(LookupError):
        if kernel.prog.type("struct kmem_cache").has_member("cpu_cache"):
            return False  # only SLUB has files of caches
    return _has_sysfs_file("slab_kset")(kernel, path)


def _kernfs_child(directory: Object, name: bytes) -> Object | None:
    prog = directory.prog_
    if directory.flags & prog["KERNFS_LINK"]:  # a cache merged with others
        directory = directory.symlink.target_kn
    if not directory.flags & prog["KERNFS_DIR"]:
        return None
    for rb_node in _tree(directory.dir.children.rb_node):
        node = container_of(rb_node, "struct kernfs_node", "rb")
        # One more byte than the name tells it from longer names.
        if prog.read_c_string(int(node.name), max_size=len(name) + 1) == name:
            return node
    return None


def _has_cgroup_file(kernel: Kernel, path: list[str]) -> bool | None:
    controller, _, name = path[-1].partition(".")
    if controller != "memory" or name == "pressure":  # cgroup.… files belong to the cgroup core
        return None
    prog = kernel.prog
    subsystem = prog["memory_cgrp_subsys"]
    is_v2 = int(subsystem.root) == prog["cgrp_dfl_root"].address_
    other = prog["__CFTYPE_NOT_ON_DFL" if is_v2 else "__CFTYPE_ONLY_ON_DFL"]
    faults = Faults()
    head = subsystem.cfts.address_
    nodes, damaged = circular(kernel.memory, head, faults, limit=_MAX_FILES)
    for address in nodes.tolist():
        first = container_of(Object(prog, "struct list_head *", address), "struct cftype", "node")
        for index in range(_MAX_FILES):
            file = first[index]
            known = decode_array(file.name.value_())
            if not known:
                break
            if known == name and not file.flags & other:
                return True
    return None if damaged or faults else False


def _tree(root: Object) -> Iterator[Object]:
    """Yield each ``struct rb_node *``; raise ValueError on a cycle or too many nodes."""
    links, seen = [root], set[int]()
    while links:
        node = links.pop()
        address = int(node)
        if not address:
            continue
        if address in seen or len(seen) == _MAX_ENTRIES:
            raise ValueError("a tree has a cycle or too many nodes")
        seen.add(address)
        links += [node.rb_left, node.rb_right]
        yield node


_LOOK_UPS: dict[str, Callable[[Kernel, list[str]], bool | None]] = {
    "/proc/sys/": _has_sysctl,
    "/sys/module/": _has_sysfs_file("module_kset"),
    "/sys/kernel/slab/": _has_slab_file,
    "/sys/fs/cgroup/": _has_cgroup_file,
}
