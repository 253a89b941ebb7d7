"""How the files of a lake table lie and what it says of itself, as it is configured: clustering, partitions, table
properties. None of it changes what rows the table has.

Owns which properties a configuration may set: those that other readers and writers go by, and none by which the
applier reads or commits. (Delta protocol: Table Features; Delta: table properties.)
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_CLUSTERED = 4
"""Delta clusters by at most so many columns."""
PROPERTIES = frozenset(
    {
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.deletedFileRetentionDuration",
        "delta.enableChangeDataFeed",
        "delta.enableRowTracking",
        "delta.logRetentionDuration",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
"""Of Delta's properties, those that a configuration may set. Names that begin otherwise are the user's own."""
VECTORS, MAPPING = "delta.enableDeletionVectors", "delta.columnMapping.mode"
WITHOUT = {VECTORS: "false", MAPPING: "none"}
"""What the applier gives every lake table, and can do without where a reader does not know it, with the only value that
a configuration may set. It holds for lake tables that are made from then on.
"""
_UNMAPPED = frozenset(" ,;{}()\n\t=.")
"""Characters of names that Parquet files, or properties that name a column of them, do not take as they are."""
_OURS = ("parquet.", "sluice.")
_RESERVED = frozenset({"external", "is_managed_location", "location", "owner", "provider"})
"""Of Spark."""
PARTITION_TYPES = frozenset({"boolean", "date", "tinyint", "smallint", "int", "bigint"})
"""Delta keeps the values of a partition column as text, in which an empty string is NULL and numbers with a fraction
are spelled in more than one way.
"""
_NOT_CLUSTERED = ("boolean", "binary", "array<", "map<", "struct<", "float", "double")
"""Delta clusters by columns of which it has bounds: it has none of these, and the applier has none stated of numbers
that do not compare alike everywhere (NaN, negative zero).
"""
LEADING = 32
"""Of so many columns of a lake table Delta collects bounds where the table does not say otherwise."""


@dataclass(frozen=True, slots=True)
class LakeLayout:
    """`properties` are (name, value)."""

    properties: tuple[tuple[str, str], ...] = ()
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    @property
    def without(self) -> frozenset[str]:
        """Properties of `WITHOUT` that it has."""
        return frozenset(name for name, _ in self.properties if name in WITHOUT)

    def __bool__(self) -> bool:
        return bool(self.properties or self.cluster_by or self.partition_by)

    @staticmethod
    def decode(value: Mapping[str, Any]) -> "LakeLayout":
        """From plain values. Raises TypeError for others than a LakeLayout has."""
        made = LakeLayout(**value)
        pairs = tuple((str(name), str(text)) for name, text in made.properties)
        return LakeLayout(pairs, tuple(made.cluster_by), tuple(made.partition_by))


PLAIN = LakeLayout()
"""Of a lake table for which nothing is configured."""


def refused_property(name: str, value: str = "") -> str:
    """Why a configuration may not set this property of a lake table, empty when it may."""
    if name in WITHOUT:
        return "" if value.lower() == WITHOUT[name] else f"{name} can be set here to {WITHOUT[name]} only"
    if name.lower().startswith("delta."):
        if name in PROPERTIES:
            return ""
        near = difflib.get_close_matches(name, PROPERTIES, n=1)
        meant = f"; did you mean {near[0]}?" if near else f" (there are {', '.join(sorted({*PROPERTIES, *WITHOUT}))})"
        return f"{name} is no property of Delta that can be set here{meant}"
    if name.lower() in _RESERVED:
        return f"{name} is reserved by Spark"
    if name.lower().startswith(_OURS):
        return f"{name} belongs to Sluice"
    return ""


def refused_unmapped(names: Iterable[str]) -> str:
    """Why a lake table with columns of these names needs column mapping, empty when it does not."""
    for name in names:
        if _UNMAPPED & set(name):
            return f"column {name!r} has a character in its name that needs {MAPPING}"
    return ""


def refused_column(name: str, kinds: Mapping[str, str], *, partitions: bool) -> str:
    """Why a lake table with columns of these Spark types cannot lie by the column `name`, empty when it can."""
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, n=1)
        return f"the lake table has no column {name!r}{f'; did you mean {near[0]}?' if near else ''}"
    kind = kinds[name]
    if partitions and kind not in PARTITION_TYPES:
        return f"column {name!r} is {kind}, and a column of partitions is one of {', '.join(sorted(PARTITION_TYPES))}"
    if not partitions and kind.startswith(_NOT_CLUSTERED):
        return f"column {name!r} is {kind}, by which files cannot be clustered"
    return ""
