"""Frozen dataclasses that are made in less time, which is where a fifth of the time of a history would go.

A frozen dataclass sets each of its fields by a call. Inside `quick_values` those of the product and of the simulator
set them as any other class does, so they are not frozen there: nothing that a history tells depends on that, and the
type checker keeps everybody from changing them. What they are made of, and what they are compared by, stays.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

_OURS = ("sluice", "tests.simulation.")
_FROZEN = ("__init__", "__setattr__", "__delattr__")
_Value = TypeVar("_Value")


@contextmanager
def quick_values() -> Iterator[None]:
    """Inside the block frozen dataclasses are made, and copied by `replace`, in less time."""
    kinds = [kind for kind in _dataclasses() if _is_plain(kind)]
    before = [(kind, name, kind.__dict__[name]) for kind in kinds for name in _FROZEN]
    users = list(users_of("replace", dataclasses.replace))
    for kind in kinds:
        kind.__init__ = _init_of(kind)
        del kind.__setattr__, kind.__delattr__
    for module in users:
        module.replace = _replace
    try:
        yield
    finally:
        for kind, name, function in before:
            setattr(kind, name, function)
        for module in users:
            module.replace = dataclasses.replace


def users_of(name: str, function: object) -> Iterator[Any]:
    """The modules of the product and of the simulator that have imported `function` under this name."""
    for module in _modules():
        if getattr(module, name, None) is function:
            yield module


def _modules() -> list[Any]:
    return [module for module in tuple(sys.modules.values()) if module.__name__.startswith(_OURS)]


def _dataclasses() -> list[Any]:
    found = {id(one): one for module in _modules() for one in vars(module).values() if isinstance(one, type)}
    return [one for one in found.values() if "__dataclass_params__" in vars(one) and one.__module__.startswith(_OURS)]


def _is_plain(kind: Any) -> bool:
    """Whether it is frozen now, and its fields are all that its `__init__` takes, in their order."""
    if not (kind.__dataclass_params__.init and all(name in vars(kind) for name in _FROZEN)):
        return False
    code = kind.__init__.__code__
    taken = code.co_varnames[1 : code.co_argcount]
    fields = dataclasses.fields(kind)
    return taken == tuple(one.name for one in fields) and all(one.init for one in fields)


@cache
def _init_of(kind: Any) -> Callable[..., None]:
    """What `dataclass` makes, with plain assignments."""
    names: dict[str, Any] = {"_MADE": object()}
    taken, lines = ["self"], []
    for one in dataclasses.fields(kind):
        value = one.name
        if one.default_factory is not dataclasses.MISSING:
            names[f"_make_{one.name}"] = one.default_factory
            taken.append(f"{one.name}=_MADE")
            value = f"_make_{one.name}() if {one.name} is _MADE else {one.name}"
        elif one.default is not dataclasses.MISSING:
            names[f"_default_{one.name}"] = one.default
            taken.append(f"{one.name}=_default_{one.name}")
        else:
            taken.append(one.name)
        lines.append(f"self.{one.name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    return _made(taken, lines or ["pass"], names)


def _replace(value: _Value, **changes: Any) -> _Value:
    """`dataclasses.replace`, without its loop over the fields in each call."""
    kind: Any = type(value)
    made: _Value = _replacing(kind)(value, **changes)
    return made


@cache
def _replacing(kind: Any) -> Callable[..., Any]:
    fields = [one.name for one in dataclasses.fields(kind)]
    if not all(one.init for one in dataclasses.fields(kind)):
        return dataclasses.replace
    given = ", ".join(f"{name}=_value.{name} if {name} is _OLD else {name}" for name in fields)
    taken = ["_value", "*", *(f"{name}=_OLD" for name in fields)]
    return _made(taken, [f"return _kind({given})"], {"_OLD": object(), "_kind": kind})


def _made(taken: list[str], lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    exec(f"def made({', '.join(taken)}):\n    " + "\n    ".join(lines), names)
    made: Callable[..., Any] = names["made"]
    return made
