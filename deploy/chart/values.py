"""`values.yaml` with its comments: each key with its default and what is said about it.

Owns the form of those comments: `# --` begins the description of the key below and goes on in
following comment lines, `# @default -- text` stands in for a default that is too long for a table.
Every key is described, or is a map of keys that are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import yaml

from sluice.errors import UsageError

Path = tuple[str, ...]
_DESCRIPTION = "# --"
_DEFAULT = "# @default --"


@dataclass(frozen=True, slots=True)
class Value:
    """One key that a user may set. `shown` is its default as people read it, `default` the value
    itself.
    """

    path: Path
    default: Any
    description: str
    shown: str = ""

    @property
    def name(self) -> str:
        return ".".join(self.path)


def read(file: FilePath) -> list[Value]:
    """All keys in the order of the file. Raises UsageError for a key without a description."""
    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_below(root, (), _Comments(text.splitlines())))


def _below(node: yaml.MappingNode, above: Path, comments: "_Comments") -> Iterator[Value]:
    for key_node, value_node in node.value:
        path = (*above, str(key_node.value))
        description, shown = comments.above(key_node.start_mark.line)
        if description:
            yield Value(path, yaml.SafeLoader("").construct_document(value_node), description, shown)
        elif isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _below(value_node, path, comments)
        else:
            raise UsageError(
                f"values.yaml:{key_node.start_mark.line + 1}: {'.'.join(path)} has no description",
                hint=f"write `{_DESCRIPTION} ...` above it",
            )


class _Comments:
    """The comment block that ends right above a line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = [line.strip() for line in lines]

    def above(self, line: int) -> tuple[str, str]:
        """Description and shown default; empty where nothing is said."""
        first = line
        while first > 0 and self._lines[first - 1].startswith("#"):
            first -= 1
        words: list[str] = []
        shown = ""
        for text in self._lines[first:line]:
            if text.startswith(_DEFAULT):
                shown = text.removeprefix(_DEFAULT).strip()
            elif text.startswith(_DESCRIPTION):
                words = [text.removeprefix(_DESCRIPTION).strip()]
            elif words:
                words.append(text.removeprefix("#").strip())
        return " ".join(words), shown
