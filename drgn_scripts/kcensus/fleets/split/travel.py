# SPDX-License-Identifier: LGPL-2.1-or-later
"""The function of tasks as bytes, without its program; their results, with what they filled."""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import cloudpickle
import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.engine.workers import each
from kcensus.kernel.kernel import Kernel
from kcensus.progress import SilentProgress

Array: TypeAlias = npt.NDArray[Any]
Work: TypeAlias = Callable[[int], Any]

_LOCAL: dict[str, Any] = {"progress": SilentProgress(), "jobs": 1, "divide": each}
_LEFT_OUT: dict[type, tuple[dict[str, Any], tuple[str, ...]]] = {
    Kernel: (_LOCAL | {"_read": {}}, ()),
    Memory: (_LOCAL, ()),
    SlabMap: ({}, ("survey",)),
}
"""Attributes with another value on a worker, and those that are read there again if needed."""


def packed(work: Work) -> tuple[bytes, list[Array]]:
    """Return ``work`` for :func:`unpacked`, and the shared columns that it fills.

    :raises pickle.PicklingError: it refers to an object of drgn without a name
    :raises TypeError: it refers to something else that does not travel, such as a file
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(work)
    return file.getvalue(), pickler.columns


def unpacked(content: bytes, prog: drgn.Program) -> tuple[Work, list[_Column]]:
    """Return the function of :func:`packed` for another program of the same dump."""
    unpickler = _Unpickler(content, prog)
    return unpickler.load(), unpickler.columns


def answer(work: Work, columns: Sequence[_Column], tasks: range) -> bytes:
    """Do some tasks; return their results and the rows that they filled."""
    for column in columns:
        column.places = []
    results = [work(task) for task in tasks]
    # A place is often the same object for all columns, and is written once.
    rows = [[(place, column.filled[place]) for place in column.places or ()] for column in columns]
    return pickle.dumps((results, rows), protocol=5)


def taken(content: bytes, columns: Sequence[Array]) -> list[Any]:
    """Fill the columns of :func:`packed` with the rows of an :func:`answer`; return its results."""
    results, rows = pickle.loads(content)
    for column, pieces in zip(columns, rows, strict=True):
        for place, values in pieces:
            column[place] = values
    return list(results)


class _Column(np.ndarray[Any, Any]):
    """A column on a worker, which notes the places that tasks fill.

    It takes values at places alone, and hands out slices to fill: any other way to write to it, as
    with ``out=``, raises :class:`ValueError`, and the leader does the tasks.
    """

    places: list[Any] | None = None
    """None for an array that was derived from a column."""
    filled: Array
    """The same memory, writable."""

    @staticmethod
    def blank(dtype: np.dtype[Any], length: int) -> _Column:
        filled = np.zeros(length, dtype)
        column = filled.view(_Column)
        column.filled = filled
        column.flags.writeable = False
        return column

    def __setitem__(self, place: Any, values: Any) -> None:
        if self.places is None:
            super().__setitem__(place, values)
            return
        self.places.append(place)
        self.filled[place] = values

    def __getitem__(self, place: Any) -> Any:
        if self.places is None:
            return super().__getitem__(place)
        if isinstance(place, slice):  # it may be filled later
            self.places.append(place)
        return self.filled[place]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.columns: list[Array] = []

    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, drgn.Program):
            return ("program",)
        if isinstance(item, drgn.Type):
            return "type", item.type_name()
        if isinstance(item, drgn.Object):
            value = None if item.address_ is not None else item.value_()
            if not isinstance(value, int):
                raise pickle.PicklingError(f"an object of type {item.type_.type_name()}")
            return "object", item.type_.type_name(), value
        if type(item) is np.ndarray and _is_shared(item):
            if item.any() or item.ndim != 1:
                return "filled", item.copy()
            known = [number for number, each in enumerate(self.columns) if each is item]
            if not known:
                self.columns.append(item)
            return "column", known[0] if known else len(self.columns) - 1, item.dtype, len(item)
        return None

    def reducer_override(self, item: Any) -> Any:
        if type(item) in _LEFT_OUT:
            values, names = _LEFT_OUT[type(item)]
            state = {name: value for name, value in vars(item).items() if name not in names}
            state |= {name: value for name, value in values.items() if name in state}
            return _bare, (type(item),), state
        return super().reducer_override(item)


def _bare(kind: type[Any]) -> Any:
    return object.__new__(kind)


def _is_shared(array: Array) -> bool:
    """Return whether an array is a column, or a part of one, that several processes can fill."""
    base: object = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return isinstance(base, mmap.mmap)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, prog: drgn.Program) -> None:
        super().__init__(io.BytesIO(content))
        self._prog = prog
        self._columns: dict[int, _Column] = {}

    @property
    def columns(self) -> list[_Column]:
        return [self._columns[number] for number in sorted(self._columns)]

    def persistent_load(self, id_: Any) -> Any:
        match id_:
            case ("program",):
                return self._prog
            case ("type", name):
                return self._prog.type(name)
            case ("object", name, value):
                return drgn.Object(self._prog, name, value)
            case ("column", number, dtype, length):
                if number not in self._columns:
                    self._columns[number] = _Column.blank(dtype, length)
                return self._columns[number]
            case ("filled", array):
                # Filled by earlier tasks; what these would add to it were lost.
                array.flags.writeable = False
                return array
        raise pickle.UnpicklingError(f"unknown id {id_!r}")
