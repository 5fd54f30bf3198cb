# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conditions on rows, as people and agents write them: ``state == "D" and seconds > 10``.

They have the syntax of Python expressions, of which a few nodes are known. Nothing is given to
``eval()``, and no attribute is read: a dotted name is the name of a column.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.text import bounded, printable

_MAX_TEXT = 1000
_MAX_NODES = 200
_MAX_SHIFT = 63
_MAX_SHOWN = 100
_QUOTED = "__quoted_"  # stands for names in backticks, which may be keywords such as class
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_LOGIC = {ast.BitAnd: np.logical_and, ast.BitOr: np.logical_or, ast.BitXor: np.logical_xor}
_TEXTS = ("contains", "startswith", "endswith")
_SYNTAX = (
    "compare columns with ==, !=, <, <=, >, >=, in; join with and, or, not; column & 0x80 tests "
    'bits; contains(column, "x"), startswith(column, "x"), endswith(column, "x") and '
    "isnull(column) test texts"
)

Mask = npt.NDArray[np.bool_]


class ConditionError(ValueError):
    """A condition cannot be evaluated; the message is one sentence."""


class Condition:
    """A condition, checked."""

    def __init__(self, text: str) -> None:
        """Parse a condition.

        :raises ConditionError: it is not one
        """
        self._text = text
        if len(text) > _MAX_TEXT:
            raise ConditionError(f"where: is longer than {_MAX_TEXT:,} characters")
        self._quoted: list[str] = re.findall("`([^`]*)`", text)
        numbers = itertools.count()
        plain = re.sub("`[^`]*`", lambda _: f"{_QUOTED}{next(numbers)}", text).strip()
        self._code = plain.encode(errors="replace")
        try:
            self._tree = ast.parse(plain, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise self._error(f"is not a condition: {_SYNTAX}") from None
        if sum(1 for _ in ast.walk(self._tree)) > _MAX_NODES:
            raise self._error(f"has more than {_MAX_NODES} parts")

    def __call__(self, columns: Mapping[str, pd.Series[Any]], count: int) -> Mask:
        """Return which of ``count`` rows meet the condition.

        :raises ConditionError: it names another column, or compares what cannot be compared
        """
        try:
            mask = self._truth(self._tree, columns)
        except ConditionError:
            raise
        except (TypeError, ValueError, ArithmeticError, NotImplementedError) as error:
            raise self._error(f"cannot be evaluated: {error}") from None
        return np.full(count, mask) if isinstance(mask, bool) else mask

    def _error(self, why: str) -> ConditionError:
        shown = bounded(printable(self._text), _MAX_SHOWN)
        return ConditionError(f"where: '{shown}' {printable(why)}")

    def _truth(self, node: ast.expr, columns: Mapping[str, Any]) -> Any:
        """Return a mask; bits of integers are true where one is set, as in C."""
        value = self._value(node, columns)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd) and _is_number(value):
            value = value != 0
        return value if isinstance(value, bool) else self._mask(value)

    def _mask(self, value: Any) -> Mask:
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            return value
        if isinstance(value, pd.Series) and value.dtype.kind == "b":
            return np.asarray(value.astype("boolean").fillna(False), np.bool_)
        raise self._error(f"does not give true or false for each row: {_SYNTAX}")

    def _value(self, node: ast.expr, columns: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | bytes() | None as value):
                return value
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._column(node, columns)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return [self._constant(part) for part in parts]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return np.logical_not(self._truth(operand, columns))
            case ast.BoolOp(op=op, values=parts):
                masks = [self._truth(part, columns) for part in parts]
                return (np.logical_and if isinstance(op, ast.And) else np.logical_or).reduce(masks)
            case ast.Compare(left=left, ops=ops, comparators=others):
                if any(map(self._is_ambiguous, others)):
                    raise self._error("has & or | beside comparisons: use and, or, or parentheses")
                values = [self._value(each, columns) for each in (left, *others)]
                pairs = zip(ops, values, values[1:], strict=False)
                return np.logical_and.reduce([self._compared(*each) for each in pairs])
            case ast.BinOp(left=left, op=op, right=right):
                return self._computed(op, self._value(left, columns), self._value(right, columns))
            case ast.Call(func=ast.Name(id=name), args=[column, ast.Constant(value=str() as part)]):
                if name in _TEXTS and not node.keywords:
                    return _tested(name, self._column(column, columns), part)
            case ast.Call(func=ast.Name(id="isnull"), args=[column], keywords=[]):
                return np.asarray(self._column(column, columns).isna())
        raise self._error(f"has a part that is not known here: {_SYNTAX}")

    def _is_ambiguous(self, node: ast.expr) -> bool:
        """Whether ``a == 1 & b == 2`` is meant, in which Python computes ``1 & b`` first."""
        is_bits = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))
        return is_bits and not self._code[: node.col_offset].rstrip().endswith(b"(")

    def _constant(self, node: ast.expr) -> Any:
        value = self._value(node, {})
        if isinstance(value, (list, pd.Series)):
            raise self._error("compares with a list of other things than numbers and texts")
        return value

    def _column(self, node: ast.expr, columns: Mapping[str, Any]) -> Any:
        name = self._name(node)
        if name not in columns:
            known = ", ".join(map(printable, columns))
            raise self._error(f"has no column '{name}' (choose from {known})")
        return columns[name]

    def _name(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name) if name.startswith(_QUOTED):
                return self._quoted[int(name.removeprefix(_QUOTED))]
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=value, attr=name):
                return f"{self._name(value)}.{name}"
            case ast.Subscript(value=value, slice=ast.Constant(value=int() as index)):
                return f"{self._name(value)}[{index}]"
        raise self._error(f"has a part that is not the name of a column: {_SYNTAX}")

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Mask:
        if not isinstance(left, pd.Series):
            left, right, op = right, left, _MIRRORED.get(type(op), op)  # 0 < count
        if not isinstance(left, pd.Series):
            raise self._error("compares no column")
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, list):
                raise self._error("has `in` without a list such as (1, 2)")
            found = np.asarray(left.isin([_like(left, each) for each in right]))
            return ~found if isinstance(op, ast.NotIn) else found
        if isinstance(op, (ast.Is, ast.IsNot)) or right is None:
            if right is not None:
                raise self._error("has `is` with something else than None")
            is_none = np.asarray(left.isna())
            return is_none if isinstance(op, (ast.Is, ast.Eq)) else ~is_none
        if isinstance(right, list):
            raise self._error("compares with a list: use `in`")
        return self._mask(_COMPARISONS[type(op)](left, _like(left, right)))

    def _computed(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) in _LOGIC and _is_mask(left) and _is_mask(right):
            return _LOGIC[type(op)](self._mask(left), self._mask(right))
        function = _ARITHMETIC.get(type(op))
        if function is None or not all(map(_is_number, (left, right))):
            raise self._error(f"computes with something else than numbers: {_SYNTAX}")
        if isinstance(op, (ast.LShift, ast.RShift)) and not (
            isinstance(right, int) and 0 <= right <= _MAX_SHIFT
        ):
            raise self._error(f"shifts by something else than 0 to {_MAX_SHIFT}")
        if isinstance(left, pd.Series):  # pandas has no shifts
            if isinstance(op, ast.RShift):
                return left // (1 << right)
            if isinstance(op, ast.LShift):
                function, right = operator.mul, 1 << right
        if any(_is_column_of(each, "f") or isinstance(each, float) for each in (left, right)):
            return function(left, right)
        return _exact(function, left, right)


_MIRRORED: Mapping[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.Gt(),
    ast.LtE: ast.GtE(),
    ast.Gt: ast.Lt(),
    ast.GtE: ast.LtE(),
}


def _is_mask(value: Any) -> bool:
    return isinstance(value, (np.ndarray, pd.Series)) and value.dtype.kind == "b"


def _is_number(value: Any) -> bool:
    if isinstance(value, pd.Series):
        return value.dtype.kind in "iuf"
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_column_of(value: Any, kinds: str) -> bool:
    return isinstance(value, pd.Series) and value.dtype.kind in kinds


def _exact(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return an integer result, in a type that holds it: none wraps around.

    :raises ArithmeticError: neither int64 nor uint64 does
    """
    if not any(isinstance(each, pd.Series) for each in (left, right)):
        return function(left, right)
    bounds = [_bounds(each) for each in (left, right)]
    needed = [*bounds[0], *bounds[1]]
    if function in (operator.add, operator.sub, operator.mul):
        needed += [function(one, other) for one in bounds[0] for other in bounds[1]]
    elif function is operator.floordiv and bounds[1][0] < 0:
        needed.append(-bounds[0][0])
    for kind in ("Int64", "UInt64"):
        limits = np.iinfo(kind.lower())
        if limits.min <= min(needed) and max(needed) <= limits.max:
            return function(*(_cast(each, kind) for each in (left, right)))
    raise ArithmeticError("the result does not fit into 64 bits")


def _bounds(value: Any) -> tuple[int, int]:
    if not isinstance(value, pd.Series):
        return value, value
    known = value.dropna()
    return (int(known.min()), int(known.max())) if len(known) else (0, 0)


def _cast(value: Any, kind: str) -> Any:
    if not isinstance(value, pd.Series):
        return value
    chosen: Any = kind.lower() if isinstance(value.dtype, np.dtype) else kind
    return value.astype(chosen)


def _like(column: pd.Series[Any], value: Any) -> Any:
    """Return a constant as the column has such values: an address may be written as a string."""
    if isinstance(value, str) and column.dtype.kind in "iu" and value.lower().startswith("0x"):
        return int(value, 16)
    if isinstance(value, str) and _has_bytes(column):
        return value.encode()
    return value


def _has_bytes(column: pd.Series[Any]) -> bool:
    return column.dtype == object and len(column) > 0 and isinstance(column.iloc[0], bytes)


def _tested(name: str, column: pd.Series[Any], part: str) -> Mask:
    if column.dtype.kind in "iufb":
        raise TypeError(f"{name}() is for columns of text")
    if not _has_bytes(column):
        if pd.api.types.infer_dtype(column, skipna=True) in ("integer", "floating", "boolean"):
            raise TypeError(f"{name}() is for columns of text")
        texts: Any = column.fillna("").str
        if name == "contains":
            return np.asarray(texts.contains(part, regex=False, na=False), np.bool_)
        return np.asarray(getattr(texts, name)(part, na=False), np.bool_)
    arrays, wanted = np.asarray(column, np.bytes_), part.encode()
    if name == "contains":
        return np.asarray(np.char.find(arrays, wanted) >= 0)
    test: Any = np.char.startswith if name == "startswith" else np.char.endswith
    return np.asarray(test(arrays, wanted), np.bool_)
