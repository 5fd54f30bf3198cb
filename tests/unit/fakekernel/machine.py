# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory, page tables and symbols of a *synthetic* x86-64 kernel."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import drgn
from drgn import Object, Program, Symbol, SymbolBinding, SymbolKind, TypeEnumerator, TypeKind
from drgn import PlatformFlags as Flags

from tests.unit.fakekernel.types import Table, add_types

PAGE = 4096
DIRECT_MAP = 0xFFFF_8880_0000_0000
VMEMMAP = 0xFFFF_EA00_0000_0000
_KERNEL_MAP = 0xFFFF_FFFF_8000_0000
RANGES = ((0, 1024), (2048, 4096))
"""Page frames that exist, with a hole in memory and in the ``struct page`` array."""
_PGD, _DIRECT_PUD, _VMEMMAP_PUD, _PMD, _PTE, _MEMMAP, _HEAP, _HEAP_END = 1, 2, 3, 4, 5, 16, 80, 512
_TYPES = """
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct page 64
struct task_struct 64 : 16 struct list_head tasks
struct mem_section 16 : 0 unsigned long section_mem_map; 8 struct usage * usage
struct usage 8 : 0 unsigned long [1] subsection_map
typedef phys_addr_t unsigned long
"""


class Machine:
    """Physical memory, its page tables, and a program with the types given and few others.

    The first 2 MB hold page tables, the ``struct page`` array and :meth:`alloc`'s heap.
    """

    byte_order: ClassVar[Literal["little", "big"]] = "little"
    """Of all that is in memory; no x86-64 is big-endian, but drgn reads one."""

    def __init__(self, *types: Table | str, vmcoreinfo: str = "") -> None:
        self.ram = mmap.mmap(-1, RANGES[-1][1] * PAGE, mmap.MAP_PRIVATE)
        self.holes: set[int] = set()
        """Page frames that cannot be read."""
        self.symbols: dict[str, Object] = {}
        flags = Flags.IS_64_BIT
        if self.byte_order == "little":
            flags |= Flags.IS_LITTLE_ENDIAN
        self.prog = Program(drgn.Platform(drgn.Architecture.X86_64, flags))
        self.prog.set_linux_kernel_custom(
            "OSRELEASE=0.0.0-synthetic\nPAGESIZE=4096\nKERNELOFFSET=0\nNUMBER(phys_base)=0\n"
            f"SYMBOL(swapper_pg_dir)={_KERNEL_MAP + _PGD * PAGE:x}\n{vmcoreinfo}",
            False,
        )
        for start, end in RANGES:
            self.prog.add_memory_segment(start * PAGE, (end - start) * PAGE, self._read, True)
        for number, each in enumerate((_TYPES, *types)):
            add_types(self.prog, each, f"machine {number}")
        self.prog.register_object_finder("synthetic", self._find, enable_index=0)
        self._heap = _HEAP * PAGE
        self._map()
        self._symbols()

    def _read(self, address: int, size: int, offset: int, physical: bool) -> bytes:
        for pfn in range(address // PAGE, (address + size - 1) // PAGE + 1):
            if pfn in self.holes:
                raise drgn.FaultError("page excluded from this synthetic dump", address)
        return self.ram[address : address + size]

    def _find(self, prog: Program, name: str, flags: object, file: str | None) -> Object | None:
        return self.symbols.get(name)

    def _map(self) -> None:
        """Map the direct map by one page of 1 GiB and the ``struct page`` array by small ones."""

        def entry(table: int, address: int, shift: int, value: int) -> None:
            place = table * PAGE + (address >> shift & 511) * 8
            self.ram[place : place + 8] = value.to_bytes(8, self.byte_order)

        entry(_PGD, DIRECT_MAP, 39, _DIRECT_PUD * PAGE | 3)
        entry(_DIRECT_PUD, DIRECT_MAP, 30, 0x83)
        entry(_PGD, VMEMMAP, 39, _VMEMMAP_PUD * PAGE | 3)
        entry(_VMEMMAP_PUD, VMEMMAP, 30, _PMD * PAGE | 3)
        entry(_PMD, VMEMMAP, 21, _PTE * PAGE | 3)
        for start, end in RANGES:
            for page in range(start * 64 // PAGE, end * 64 // PAGE):
                entry(_PTE, VMEMMAP + page * PAGE, 12, (_MEMMAP + page) * PAGE | 3)

    def _symbols(self) -> None:
        section = self.alloc("struct mem_section")
        usage = self.alloc("struct usage")
        # A subsection is 512 pages; 3 means present and mapped.
        bits = sum((1 << end // 512) - (1 << start // 512) for start, end in RANGES)
        self.fill(section, section_mem_map=3, usage=usage)
        self.set(usage.subsection_map[0], bits)
        root = self.alloc("struct mem_section *")
        self.set(root, section)
        self.variable("mem_section", "struct mem_section **", root.address_)
        for name, value in {
            "SECTIONS_PER_ROOT": 256,
            "SECTION_SIZE_BITS": 27,
            "__highest_present_section_nr": 0,
            "page_offset_base": DIRECT_MAP,
            "min_low_pfn": 1,
            "max_low_pfn": RANGES[-1][1],
            "max_pfn": RANGES[-1][1],
        }.items():
            self.constant(name, value)
        self.constant("vmemmap", VMEMMAP, "struct page *")
        # The engine walks from the first task to the second to choose how to read memory.
        tasks = self.variable("init_task", "struct task_struct"), self.alloc("struct task_struct")
        for task, comm in zip(tasks, (b"swapper/0", b"init"), strict=True):
            if hasattr(task, "comm"):
                self.set(task.comm, comm)  # a page of a task that is all zero would be a lost one
        self.list_init(tasks[0].tasks)
        self.list_add_tail(tasks[1].tasks, tasks[0].tasks)

    def constant(self, name: str, value: int, type_: str | drgn.Type = "unsigned long") -> None:
        """Give the program a constant, or a variable whose value is known without memory."""
        self.symbols[name] = Object(self.prog, type_, value)

    def variable(self, name: str, type_: str, value: int | None = None) -> Object:
        """Give the program a variable that lies in memory."""
        self.symbols[name] = self.alloc(type_)
        if value is not None:
            self.set(self.symbols[name], value)
        return self.symbols[name]

    def functions(self, places: Mapping[str, int], size: int = 16) -> None:
        add_functions(self.prog, places, size)

    def enum(self, tag: str, names: Sequence[str], first: int = 0) -> None:
        """Give the program an enum, each name one more than the one before."""
        numbers = {name: first + at for at, name in enumerate(names)}
        enumerators = [TypeEnumerator(*item) for item in numbers.items()]
        type_ = self.prog.enum_type(tag, self.prog.type("unsigned int"), enumerators)
        for name, number in numbers.items():
            self.constant(name, number, type_)

    def alloc(
        self, type_: str, extra: int = 0, *, alone: bool = False, **members: int | bytes | Object
    ) -> Object:
        """Allocate a zeroed object with ``members`` in the heap, and ``extra`` bytes after it.

        :param alone: on pages of its own, so that :meth:`drop` affects nothing else
        """
        if alone:
            self._heap = -(-self._heap // PAGE) * PAGE
        place = Object(self.prog, type_, address=DIRECT_MAP + self._heap)
        self._heap += -(-(drgn.sizeof(place) + extra) // 64) * 64
        if alone:
            self._heap = -(-self._heap // PAGE) * PAGE
        assert self._heap <= _HEAP_END * PAGE, "the synthetic heap is full"
        self._use(self.physical(place.address_), drgn.sizeof(place) + extra)
        return self.fill(place, **members)

    def fill(self, place: Object, **members: int | bytes | Object) -> Object:
        for name, value in members.items():
            self.set(place.member_(name), value)
        return place

    def string(self, text: bytes) -> int:
        place = int(self.alloc("char", len(text)).address_)
        self.write(place, text + b"\0")
        return place

    def set(self, place: Object, value: int | bytes | Object) -> None:
        """Store a number, the address of an object, or a :meth:`string` or array, at ``place``."""
        if isinstance(value, bytes):
            if place.type_.kind == TypeKind.ARRAY:
                self.write(place.address_, value)
                return
            value = self.string(value)
        number = int(value.address_ if isinstance(value, Object) else value)
        bits = place.bit_field_size_
        if bits is None:
            size = drgn.sizeof(place)
            self.write(place.address_, (number % (1 << 8 * size)).to_bytes(size, self.byte_order))
            return
        shift = place.bit_offset_
        if self.byte_order == "big":
            shift = 64 - shift - bits
        mask = (1 << bits) - 1 << shift
        word = self.word(place.address_) & ~mask | (number << shift & mask)
        self.write_words(place.address_, word)

    def write(self, address: int, data: bytes) -> None:
        at = self.physical(address)
        self.ram[at : at + len(data)] = data
        self._use(at, len(data))

    def _use(self, start: int, size: int) -> None:
        """Have something on the pages, after this object if there is room: no page is all zero."""
        end = start + size
        for page in range(start // PAGE, -(-end // PAGE)):
            last = page * PAGE + PAGE - 8
            if not start <= last < end and page >= _HEAP:
                self.ram[last] = self.ram[last] or 1

    def write_words(self, address: int, *words: int) -> None:
        self.write(address, b"".join(word.to_bytes(8, self.byte_order) for word in words))

    def word(self, address: int) -> int:
        at = self.physical(address)
        return int.from_bytes(self.ram[at : at + 8], self.byte_order)

    def list_add_tail(self, node: Object, head: Object) -> None:
        """Add a node at the end of a list, after :meth:`list_init` of its head."""
        last = self.word(head.address_ + 8)
        self.write_words(node.address_, head.address_, last)
        self.write_words(last, node.address_)
        self.write_words(head.address_ + 8, node.address_)

    def list_init(self, head: Object) -> None:
        self.write_words(head.address_, head.address_, head.address_)

    @staticmethod
    def physical(address: int) -> int:
        if VMEMMAP <= address < VMEMMAP + (1 << 21):
            return _MEMMAP * PAGE + address - VMEMMAP
        return address - DIRECT_MAP

    def drop(self, address: int, pages: int = 1) -> None:
        """Make pages unreadable, starting with that of ``address``."""
        first = self.physical(address) // PAGE
        self.holes.update(range(first, first + pages))


def add_functions(prog: Program, places: Mapping[str, int], size: int) -> None:
    """Add symbols of functions, all of one size, to a program."""
    kinds = SymbolBinding.GLOBAL, SymbolKind.FUNC
    symbols = [Symbol(name, at, size, *kinds) for name, at in places.items()]

    def find(_: Program, name: str | None, address: int | None, __: bool) -> list[Symbol]:
        return [
            each
            for each in symbols
            if name in (None, each.name)
            and (address is None or each.address <= address < each.address + size)
        ]

    prog.register_symbol_finder("functions", find, enable_index=0)
