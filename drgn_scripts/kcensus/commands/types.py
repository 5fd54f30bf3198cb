# SPDX-License-Identifier: LGPL-2.1-or-later
"""Save what kcensus needs of a kernel's debug info as a small file, a type pack."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.text import printable


def _save(vmlinux: Path, modules: tuple[Path, ...], output: Path) -> Exit:
    from kcensus.outputs import prepare, replacing
    from kcensus.sources.debuginfo.lookups import lookups, of_helpers
    from kcensus.sources.debuginfo.packs.maker import make
    from kcensus.sources.debuginfo.packs.modules import module_files

    names = lookups()
    names.add(of_helpers())
    files, others = module_files(vmlinux, modules, names.modules)
    made = make(vmlinux, files, names)
    for sentence in (*others, *made.skipped):
        complain(sentence)
    prepare(output)
    path = output / made.head.file_name
    with replacing(path) as part:
        part.write_bytes(made.data)
    count = len(made.modules)
    listed = f"{count} module{'s' * (count != 1)} ({', '.join(made.modules)})"
    if not count:
        listed = "no modules: pass theirs, too, unless they are built in or have BTF in the dump"
    click.echo(
        f"{printable(str(path))}: {len(made.data):,} bytes for {made.head}: {made.types} types, "
        f"and {printable(listed)}"
    )
    return Exit.DONE


_SAVE = options.command(
    "save",
    _save,
    [
        click.Argument(["vmlinux"], type=options.PATH, metavar="VMLINUX"),
        click.Argument(["modules"], type=options.PATH, nargs=-1, metavar="[MODULES]..."),
        options.files(
            "--output -o",
            "DIR",
            "Directory for the pack; made if it is missing. A pack of the same build is replaced.",
            required=True,
        ),
    ],
    "Write DIR/BUILD-ID.kctypes: the types, variables and symbols of VMLINUX and MODULES that "
    "kcensus uses.\n\nMODULES are files (`.ko`, `.ko.debug`) and directories with modules; "
    "modules that no analysis needs, or of another release, are left out. Default: the modules "
    "beside "
    "VMLINUX, or in its debug tree. Every command finds the pack of a dump in a directory given "
    "with -s or in KCENSUS_SYMBOLS, by the build ID, or for kernels before 5.9 by the banner in "
    "the dump's memory. It is a megabyte or so in place of the debug info's several "
    "hundred; write it where the debug info is.",
    (
        (
            "kcensus types save /usr/lib/debug/lib/modules/6.1.0-56-amd64/vmlinux -o packs",
            "with the modules of that kernel",
        ),
        ("kcensus types save vmlinux dm-mod.ko.debug xfs.ko.debug -o packs", "with two modules"),
        ("kcensus report vmcore -s packs", "read a dump without any other debug info"),
        ("KCENSUS_SYMBOLS=/srv/packs kcensus report vmcore", "with the packs of a team"),
    ),
)


COMMAND = options.group(
    "types",
    (
        "Save what kcensus needs of a kernel's debug info as a small file, a type pack.\n\nWith "
        "it, dumps of that kernel are read on machines without its debug info. Line numbers and "
        "arguments of functions, such as the lock that a running task spins for, need the debug "
        "info itself."
    ),
    [_SAVE],
)
