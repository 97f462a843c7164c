"""Old public names, which work for one release with a `DeprecationWarning`.

    renamed_names        names of a package: its `__getattr__`
    resolve_moved_names  names that another module of the same folder has now: a module's `__getattr__`
    renamed_members      members of a class
    renamed_arguments    keyword arguments of a function
    adopt_old_members    members of a class that subclasses override, perhaps under the old name

Invariants
* A type checker does not accept an old name: the aliases are made at run time.
* A class that overrides a member under its old name works like one that uses the new name. The warning comes
  once, when the class is defined. `super()` reaches the member of the base class by either name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def renamed_names(package: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that still resolves old names, with a warning."""

    def get(name: str) -> Any:
        if name in new_names:
            new = new_names[name]
            warn_of_old_name(f"{package}.{name}", f"{package}.{new}")
            return getattr(import_module(package), new)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def resolve_moved_names(module: str, new_homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that still finds what another module of its folder has now, with a warning."""

    def get(name: str) -> Any:
        if name in new_homes:
            home = f"{module.rpartition('.')[0]}.{new_homes[name]}"
            warn_of_old_name(f"{module}.{name}", f"{home}.{name}")
            return getattr(import_module(home), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


def renamed_members(**new_names: str) -> Callable[[C], C]:
    """A decorator of a class: its members are also found by their old names."""

    def decorate(owner: C) -> C:
        for old, new in new_names.items():
            setattr(owner, old, _OldMember(owner.__name__, old, new))
        return owner

    return decorate


def adopt_old_members(owner: type, new_names: Mapping[str, str]) -> None:
    """Let `owner`, a new subclass, define members by old names, and read them by either.

    For `__init_subclass__` of a class that others derive from.
    """
    for old, new in new_names.items():
        members = vars(owner)
        if old in members and new not in members:
            text = f"{owner.__qualname__}.{old} is now called {new}: rename it in your class"
            warnings.warn(f"{text}; the old name goes in the next release", DeprecationWarning, stacklevel=4)
            setattr(owner, new, members[old])
        if new in members:
            setattr(owner, old, _OldMember(owner.__name__, old, new, members[new]))


class _OldMember:
    """A member by its old name: `member` if given, else whatever the new name finds."""

    def __init__(self, owner: str, old: str, new: str, member: Any = None) -> None:
        self.owner, self.old, self.new, self.member = owner, old, new, member

    def __get__(self, instance: Any, owner: type) -> Any:
        warn_of_old_name(f"{self.owner}.{self.old}", f"{self.owner}.{self.new}")
        if self.member is None:
            return getattr(owner if instance is None else instance, self.new)
        bind = getattr(type(self.member), "__get__", None)
        return self.member if bind is None else bind(self.member, instance, owner)


def renamed_arguments(**new_names: str) -> Callable[[F], F]:
    """A decorator: calls with an old keyword argument are passed on with the new one."""

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            for old in new_names.keys() & values.keys():
                new = new_names[old]
                if new in values:
                    raise TypeError(f"{function.__qualname__}: {old}= is the old name of {new}=; give one")
                warn_of_old_name(f"{function.__qualname__}({old}=)", f"{new}=")
                values[new] = values.pop(old)
            return function(*args, **values)

        return cast(F, call)

    return decorate


def warn_of_old_name(old: str, new: str) -> None:
    """Warn the caller of the caller."""
    warnings.warn(
        f"{old} is now {new}; the old name goes in the next release", DeprecationWarning, stacklevel=3
    )
