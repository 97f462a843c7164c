"""Values of many environments in one frame: arrays by number, equal values once, and checks of a header.

Small arrays of the same name, dtype and shape in a list (the observations of one environment batch) are
stacked and sent as one array. Texts and flags that are equal in all environments are sent once. The cost of a
message thus depends on its bytes, not on the number of environments.

Reading checks everything: a header of the wrong form raises `EncodingError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from stepwell.core import EncodingError
from stepwell.core.arrays import AnyArray

MAX_STACKED_BYTES = 4096  # of one array; for larger ones a copy does not pay
Arrays = Sequence[AnyArray]
P = ParamSpec("P")
T = TypeVar("T")
PLAIN_TYPES = frozenset([type(None), bool, int, float, str])
_SHARED = PLAIN_TYPES - {float}


class ArrayPacker:
    """Collects arrays; the header refers to each by its number."""

    def __init__(self) -> None:
        self.arrays: list[AnyArray] = []

    def add_array(self, array: AnyArray) -> int:
        """Add one array; returns its number."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def stack_rows(self, rows: Sequence[Mapping[str, AnyArray]]) -> Any:
        """Named arrays of many rows: by name if all rows have the same names, otherwise row by row."""
        if not rows:
            return None
        if len(set(map(tuple, rows))) > 1:
            return [{name: self.add_array(array) for name, array in row.items()} for row in rows]
        return {name: self.stack_column([row[name] for row in rows]) for name in rows[0]}

    def stack_column(self, column: list[AnyArray]) -> int | list[int]:
        """The number of one stacked array, or one number per row."""
        first = column[0]
        is_small = 0 < first.nbytes <= MAX_STACKED_BYTES and len(column) > 1
        if is_small and len({(array.dtype, array.shape) for array in column}) == 1:
            return self.add_array(np.array(column))
        return [self.add_array(array) for array in column]


class ArrayUnpacker:
    """Gives arrays by their number."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def get_array(self, number: Any) -> AnyArray:
        """The array with this number."""
        if type(number) is not int or not 0 <= number < len(self._arrays):
            raise EncodingError(f"array {number!r} of {len(self._arrays)} is not there")
        return self._arrays[number]

    def unstack_rows(self, value: Any, count: int) -> list[dict[str, AnyArray]]:
        """The rows of `stack_rows`."""
        if value is None:
            return require_count([], count)
        if isinstance(value, list):
            rows = [{name: self.get_array(number) for name, number in row.items()} for row in value]
            return require_count(rows, count)
        columns = {name: self.unstack_column(column, count) for name, column in value.items()}
        return [{name: column[place] for name, column in columns.items()} for place in range(count)]

    def unstack_column(self, value: Any, count: int) -> list[AnyArray]:
        """The column of `stack_column`."""
        if isinstance(value, list):
            return require_count([self.get_array(number) for number in value], count)
        stacked = self.get_array(value)
        # indexing a vector would give a number, not an array
        rows = [np.asarray(stacked[i, ...]) for i in range(len(stacked))] if stacked.ndim == 1 else stacked
        return require_count(list(rows), count)


def refuse_invalid(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function that reads a header: one of the wrong form raises `EncodingError`."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def read_or_refuse(*args: P.args, **options: P.kwargs) -> T:
            try:
                return read(*args, **options)
            except EncodingError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
                raise EncodingError(f"the frame does not hold the {what} it should: {error!r}") from error

        return read_or_refuse

    return decorate


def require_type(value: Any, kind: type[T]) -> T:
    """The value, if it has this type."""
    if not isinstance(value, kind):
        raise EncodingError(f"{value!r} should be a {kind.__name__}")
    return value


def require_types(values: Any, kind: type[T], count: int) -> list[T]:
    """The values, if there are `count` of exactly this type."""
    if set(map(type, require_count(require_type(values, list), count))) - {kind}:
        raise EncodingError(f"expected only values of type {kind.__name__}, got {values!r}")
    found: list[T] = values
    return found


def share_value(values: list[Any]) -> list[Any]:
    """One value if all are equal; not for floats, because -0.0 equals 0.0."""
    if len(values) > 1 and values.count(values[0]) == len(values):
        kinds = set(map(type, values))
        return values[:1] if len(kinds) == 1 and kinds <= _SHARED else values
    return values


def expand_value(values: Any, count: int) -> list[Any]:
    """The values of `share_value`."""
    found = require_type(values, list)
    return found * count if len(found) == 1 else require_count(found, count)


def require_count(values: list[T], count: int) -> list[T]:
    """The values, if there are `count`."""
    if len(values) != count:
        raise EncodingError(f"expected {count} values, got {len(values)}")
    return values
