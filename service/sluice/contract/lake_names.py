"""Where lake tables stand below the lake's address, from the names at the source. Pure.

Invariant: a path is chosen once, for one generation of a source table, and kept in the manifest together with where
in it the name of a target stands. So another template moves no lake table, and the paths of all targets of a table
follow from what the manifest has.
"""

import re
from dataclasses import dataclass

from sluice.contract.keys import OF_ITS_OWN, lake_path, lake_path_of_its_own, path_part

DEFAULT_TEMPLATE = "{schema}/{target}"
PLACEHOLDERS = ("pipeline", "database", "schema", "table", "target")
_TEMPLATE = re.compile(r"(?:[A-Za-z0-9_-]|\{[a-z]+\}|/)+")
_LOWER = "lower:"


@dataclass(frozen=True, slots=True)
class LakeNames:
    """`template` has PLACEHOLDERS, and `lower` makes all letters of a path small."""

    template: str = DEFAULT_TEMPLATE
    lower: bool = False
    pipeline: str = ""
    database: str = ""

    def place(self, schema: str, table: str) -> str:
        """Where the lake table of a source table stands, with its name in braces if those of its other targets do not
        stand beside it.
        """
        if self.template == DEFAULT_TEMPLATE and not self.lower:
            return lake_path(schema, table)
        target = self._cased(path_part(table))
        values = {"pipeline": self.pipeline, "database": self.database, "schema": schema, "table": table}
        parts = {name: self._cased(path_part(value)) for name, value in values.items()}
        return self._cased(self.template).format(**parts, target=f"{{{_LOWER if self.lower else ''}{target}}}")

    def place_of_its_own(self, oid: int, schema: str, table: str) -> str:
        """Where it stands while another table has the path of its name."""
        if self.template == DEFAULT_TEMPLATE and not self.lower:
            return lake_path_of_its_own(oid, schema, table)
        return f"{self.place(schema, table)}{OF_ITS_OWN}{oid}"

    def _cased(self, text: str) -> str:
        return text.lower() if self.lower else text


def misspelled(template: str) -> str:
    """Why `template` is none, empty when it is."""
    found = re.findall(r"\{([^}]*)\}", template)
    unknown = [name for name in found if name not in PLACEHOLDERS]
    if unknown:
        return f"{{{unknown[0]}}} is no part of a path; there are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
    if not _TEMPLATE.fullmatch(template):
        return "a path has letters, digits, _, -, / and parts such as {schema}"
    if found.count("target") != 1:
        return "{target} must stand in it once: it tells the lake tables of one source table apart"
    if any(not part or part.startswith("_") for part in template.split("/")):
        return "no folder of a path is empty or begins with _"
    return ""


def split(place: str) -> tuple[str, str]:
    """The path of the table's own lake table, and that of all its targets with braces where the name goes; empty
    where they stand beside it.
    """
    before, brace, rest = place.partition("{")
    name, _, after = rest.partition("}")
    if not brace:
        return place, ""
    lower = _LOWER if name.startswith(_LOWER) else ""
    return f"{before}{name.removeprefix(_LOWER)}{after}", f"{before}{{{lower}}}{after}"


def place_of(path: str, pattern: str) -> str:
    """What `split` made them of."""
    if not pattern:
        return path
    before, _, rest = pattern.partition("{")
    lower, _, after = rest.partition("}")
    return f"{before}{{{lower}{path[len(before) : len(path) - len(after)]}}}{after}"


def has_name(path: str, pattern: str, table: str) -> bool:
    """Whether `split` made `path` and `pattern` of a place of `table`."""
    return path.lower() == joined(pattern, table).lower()


def joined(pattern: str, name: str) -> str:
    """The path that a target called `name` has by such a pattern."""
    part = path_part(name)
    if f"{{{_LOWER}}}" in pattern:
        return pattern.replace(f"{{{_LOWER}}}", part.lower())
    return pattern.replace("{}", part)
