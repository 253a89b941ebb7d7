"""The settings as a flat list of keys: what each is called in the file and in the environment, and
whether it is a secret.

Invariant: derived from the models alone, so that documentation, environment names and error
messages cannot drift from what is accepted.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sluice.settings.model import Settings
from sluice.settings.section import Section

ENV_PREFIX = "SLUICE_"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `map_of_strings` keys take any further name below them (object store options,
    Spark configuration). `list_of_strings` ones take several, with commas between them in the environment.
    """

    path: Path
    field: FieldInfo
    secret: bool
    map_of_strings: bool
    list_of_strings: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def env(self) -> str:
        return ENV_PREFIX + "__".join(self.path).upper()

    @property
    def from_environment(self) -> bool:
        """Whether the environment can give it: not names with dots or capitals, not the version of
        the file's own format, and not a list whose items may hold any sign.
        """
        return self.path not in (("version",), ("tables",), ("apply", "conf"), ("source", "password_command"))


def keys(section: type[Section] = Settings, above: Path = ()) -> Iterator[Key]:
    """Every setting below `section`, in the order of the models."""
    for name, field in section.model_fields.items():
        annotation: Any = field.annotation
        below = _as_section(annotation)
        if below is not None:
            yield from keys(below, (*above, name))
        else:
            is_map = get_origin(annotation) is dict
            yield Key(
                (*above, name),
                field,
                secret=_holds_secret(annotation),
                map_of_strings=is_map and _as_section(get_args(annotation)[1]) is None,
                list_of_strings=any(get_origin(one) is tuple for one in (annotation, *get_args(annotation))),
            )


def allowed_below(path: Path) -> tuple[str, ...]:
    """The keys that may stand directly below `path`; empty when any may, or none."""
    section: type[Section] | None = Settings
    rest = list(path)
    while rest and section is not None:
        field = section.model_fields.get(rest.pop(0))
        annotation: Any = field.annotation if field else None
        if get_origin(annotation) is dict and rest:
            rest.pop(0)
            annotation = get_args(annotation)[1]
        section = _as_section(_item(annotation))
    return tuple(section.model_fields) if section is not None else ()


def may_be_shown(path: Path) -> bool:
    """Whether the value at `path` may be repeated in an error: only known settings that are no
    secrets. A secret under a mistyped name is still one.
    """
    if len(path) >= 3 and path[0] == "tables":
        return path[2] in allowed_below(path[:2]) and (len(path) == 3 or path[2] == "targets")
    return any(path[: len(key.path)] == key.path and not key.secret for key in keys())


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _item(annotation: Any) -> Any:
    """What a list holds, which may be left out; anything else as it is."""
    while get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        annotation = get_args(annotation)[0]
    return annotation


def _as_section(annotation: Any) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(argument) for argument in get_args(annotation))
