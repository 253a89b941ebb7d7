"""From file and environment to a checked tree, with the origin of every value.

Invariants: the environment wins over the file, the file over defaults. Nothing unknown is accepted.
An error names the key, where it was given, what is allowed and, for a mistyped name, the nearest
known one. Never repeats the value of a secret, nor any value under an unknown name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sluice.errors import UsageError
from sluice.settings import document, environment
from sluice.settings.columns import FORMS, NAMES, RULE
from sluice.settings.document import Document
from sluice.settings.model import Settings
from sluice.settings.tree import Path, allowed_below, keys, may_be_shown, nearest

DEFAULT_FILE = "sluice.yaml"
_SHOWN_CHARACTERS = 60
_FORM = 4
"""Where the place of an error in a column rule says which form of a rule it was taken for."""
_WANTED = {"tuple_type": "a list", "dict_type": "a mapping", "model_type": "a mapping"}
"""What a value is that is not even of the right kind, in words of the file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, and for each key that was given the place it was given at."""

    settings: Settings
    document: Document

    def origin(self, path: Path) -> str:
        return self.document.origins.get(path, "default")


def load(path: str, *, environ: Mapping[str, str]) -> Loaded:
    """Reads `path`, lays `environ` over it and checks the result. Raises UsageError with every
    problem found.
    """
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no configuration file {path}", hint="`sluice init` writes one; -c FILE names another"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {path} cannot be read ({type(error).__name__})") from None
    tree = document.parse(text, name=FilePath(path).name, environ=environ)
    environment.overlay(tree, environ)
    return Loaded(check(tree), tree)


def check(tree: Document) -> Settings:
    """The settings that `tree` spells. Raises UsageError."""
    try:
        return Settings.model_validate(tree.values)
    except ValidationError as error:
        problems = [
            _problem(detail, tree)
            for detail in error.errors(include_url=False, include_context=True, include_input=True)
        ]
        raise UsageError(
            "\n  ".join(["the configuration is not valid:", *problems]),
            hint="`sluice config schema` describes every key",
        ) from None


def _problem(detail: ErrorDetails, tree: Document) -> str:
    loc, form = detail["loc"], None
    if len(loc) > _FORM and (loc[0], loc[2]) == ("tables", "columns"):
        # The form of a rule is no key of its own.
        loc, form = loc[:_FORM] + loc[_FORM + 1 :], FORMS.get(str(loc[_FORM]))
    path = tuple(str(part) for part in loc if not isinstance(part, int) and part != "[key]")
    name = _name(loc) or "the whole"
    origin = tree.origin(path)
    where = f"{origin}: {name}" if origin else name
    if detail["type"] == "extra_forbidden":
        return f"{where}: unknown key{_instead(path, tuple(form.model_fields) if form else allowed_below(path[:-1]))}"
    if detail["type"] == "missing":
        return f"{where}: missing; it has no default{_env_name(path)}"
    return f"{where}: {_reason(detail)}{_shown(path, detail['input'])}"


def _name(loc: tuple[int | str, ...]) -> str:
    """The key with the places in lists, as `tables.public.a.targets[0].kind`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc if part != "[key]"]
    return "".join(parts).removeprefix(".")


def _reason(detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "string_pattern_mismatch":
        return f"must match {detail['ctx']['pattern']}"
    if detail["type"] in _WANTED:
        return f"must be {_WANTED[detail['type']]}"
    if detail["type"] == RULE and isinstance(detail["input"], str):
        near = nearest(detail["input"], NAMES)
        return detail["msg"] + (f"; did you mean {near}?" if near else "")
    return detail["msg"][0].lower() + detail["msg"][1:]


def _instead(path: Path, allowed: tuple[str, ...]) -> str:
    near = nearest(path[-1], allowed)
    elsewhere = nearest(path[-1], (key.path[-1] for key in keys())) if near is None else None
    place = next((key.name for key in keys() if key.path[-1] == elsewhere), None)
    suggestion = f"; did you mean {near}?" if near else f"; did you mean {place}?" if place else ""
    return suggestion + (f" (allowed here: {', '.join(sorted(allowed))})" if allowed else "")


def _env_name(path: Path) -> str:
    name = next((key.env for key in keys() if key.path == path), None)
    return f" (in the environment: {name})" if name else ""


def _shown(path: Path, value: Any) -> str:
    if not path or not may_be_shown(path) or not isinstance(value, str | int | float) or "@" in str(value):
        return ""
    text = str(value)
    return (
        f" (given: {text[:_SHOWN_CHARACTERS]!r})" if isinstance(value, str) else f" (given: {text[:_SHOWN_CHARACTERS]})"
    )
