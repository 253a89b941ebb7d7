"""The configuration file as a tree of plain values that remembers where each value came from.

Invariants: a key written twice is refused (YAML would silently keep the last), and so is a number that is
not what it looks like (YAML takes 0100 for 64 and 1:30 for 90); `${VAR}` in a value
becomes the environment's value, and an unset variable is an error, never an empty string. Knows no
setting by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sluice.errors import UsageError

Path = tuple[str, ...]
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
_TEXT_TAG = "tag:yaml.org,2002:str"
_TRUTH_TAG = "tag:yaml.org,2002:bool"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OF_ANOTHER_BASE = re.compile(r"[-+]?0[0-9_xXbB]|.*:")
_DEEPEST = 20
"""No setting is nearly as deep. An alias of what it is in has no end."""


@dataclass(slots=True)
class Document:
    """`values` is the tree; `origins` says for each path of it where it was given, as people read
    it (`sluice.yaml:4`, `env SLUICE_PIPELINE`).
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)

    def put(self, path: Path, value: Any, *, origin: str) -> None:
        """Sets one value over whatever is there, and above it what is missing."""
        level = self.values
        for part in path[:-1]:
            below = level.get(part)
            if not isinstance(below, dict):
                below = level[part] = {}
            level = below
        level[path[-1]] = value
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = origin

    def origin(self, path: Path) -> str | None:
        """Where `path` or the nearest thing above it was given."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return None


def parse(text: str, *, name: str, environ: Mapping[str, str]) -> Document:
    """The document that `text` spells. `name` is the file's name in origins and errors. Raises
    UsageError, which never repeats a value.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        # What it says of an alias names that: the value of whoever did not know that `*` begins one.
        aliased = isinstance(error, yaml.composer.ComposerError) and "alias" in (error.problem or "")
        problem = "undefined alias" if aliased else getattr(error, "problem", None) or "unreadable"
        raise UsageError(f"{where}: not valid YAML: {problem}") from None
    except RecursionError:
        raise UsageError(f"{name}: not valid YAML: nested too deeply") from None
    document = Document()
    if root is None:
        return document
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{name}: the file must be a mapping of settings")
    document.values = _Reader(document, name, environ).mapping(root, ())
    return document


class _Reader:
    """Turns YAML nodes to values and notes the line of each."""

    def __init__(self, document: Document, name: str, environ: Mapping[str, str]) -> None:
        self._document = document
        self._name = name
        self._environ = environ
        self._loader = yaml.SafeLoader("")

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            where = f"{self._name}:{key_node.start_mark.line + 1}"
            if not key or key == "<<":
                raise UsageError(f"{where}: a key must be plain text")
            if key in values:
                raise UsageError(f"{where}: {'.'.join((*path, key))} is given twice")
            self._document.origins[*path, key] = where
            values[key] = self._value(value_node, (*path, key))
        return values

    def _value(self, node: yaml.Node, path: Path, *, lists: int = 0) -> Any:
        if len(path) + lists > _DEEPEST:
            raise UsageError(f"{self._name}:{node.start_mark.line + 1}: nested too deeply")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, path, lists=lists + 1) for item in node.value]
        # YAML 1.1 takes `off` for false, which is a value of settings that are no truths.
        if node.tag == _TEXT_TAG or (node.tag == _TRUTH_TAG and node.value.lower() not in ("true", "false")):
            return self._interpolated(str(node.value), node, path)
        if node.tag in _NUMBER_TAGS and _OF_ANOTHER_BASE.match(node.value):
            raise UsageError(
                f"{self._name}:{node.start_mark.line + 1}: {'.'.join(path)} is no plain decimal number, and YAML "
                "would take it for another one",
                hint="write it without leading zeros and colons; in quotes if it is a text",
            )
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise UsageError(
                f"{self._name}:{node.start_mark.line + 1}: {'.'.join(path)} holds a value of a kind "
                "that settings do not have"
            ) from None

    def _interpolated(self, text: str, node: yaml.Node, path: Path) -> str:
        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            where = f"{self._name}:{node.start_mark.line + 1}: {'.'.join(path)}"
            if match[1] is None:
                raise UsageError(
                    f"{where}: `${{` must begin ${{VARIABLE}} or ${{VARIABLE:-default}}",
                    hint="write $${ for the two characters themselves",
                )
            value = self._environ.get(match[1], match[2])
            if value is None:
                raise UsageError(
                    f"{where}: the environment variable {match[1]} is not set",
                    hint=f"set it, or give a default: ${{{match[1]}:-value}}",
                )
            return value

        return _REFERENCE.sub(replace, text)
