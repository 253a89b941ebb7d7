"""What should stand in a catalog for a lake table, and what is to be done about what does. Pure.

Owns: a name that leads to something else is left as it is. An entry is ours when it leads to the lake table itself, or
when this pipeline has marked it and it leads into its lake: a new generation may stand at another path. Nothing is ever
removed from a catalog.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from sluice.printable import one_line
from sluice_spark.catalog.columns import Column

PIPELINE, TABLE = "sluice.pipeline", "sluice.table"
"""Properties of an entry: who made it, and for which lake table by key."""
PROVIDER = "spark.sql.sources.provider"
DELTA = "delta"
_OF_SPARK = "spark.sql."
INPUT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
"""Hive and Glue want the three of every table; none is used for a Delta table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`name` has its parts with dots between them, `location` is the lake table's, `table` its key, `columns` are
    those of its newest version.
    """

    name: str
    location: str
    pipeline: str
    table: str
    columns: tuple[Column, ...] = ()

    @property
    def marks(self) -> dict[str, str]:
        return {PIPELINE: self.pipeline, TABLE: self.table}

    @property
    def properties(self) -> dict[str, str]:
        """Of its entry, by which Spark and Trino know a Delta table in Hive and Glue."""
        return {"EXTERNAL": "TRUE", PROVIDER: DELTA, **self.marks}

    def properties_beside(self, others: Mapping[str, str]) -> dict[str, str]:
        """Its properties in the place of an entry that has `others`: what people wrote there stays, but for what
        Spark says of columns, which may be other ones now.
        """
        return {**{name: others[name] for name in others if not name.startswith(_OF_SPARK)}, **self.properties}

    @property
    def serde_parameters(self) -> dict[str, str]:
        """Spark and Trino look for the location here."""
        return {"path": self.location, "serialization.format": "1"}

    @property
    def parts(self) -> list[str]:
        return self.name.split(".")

    @property
    def listed(self) -> tuple[tuple[str, str, str], ...]:
        """Its columns as Hive and Glue list them: small letters that can be printed, their types, comments."""
        return tuple(
            (one_line(column.name.lower()), one_line(column.hive_type), column.comment) for column in self.columns
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in the catalog under a name. `columns` are in the catalog's own form, and `pipeline` and `table` are
    empty where nobody has marked it.
    """

    location: str
    is_delta: bool
    columns: Sequence[object] = ()
    pipeline: str = ""
    table: str = ""


def taken_by(wanted: Entry, found: Found, *, lake: str, names: dict[str, str]) -> str:
    """Why the entry that was found is left as it is, empty when it is ours. `lake` is the address of the lake, and
    `names` are those of all its tables by key.
    """
    if not found.is_delta:
        return "what has this name there is no Delta table"
    if found.table != wanted.table and found.pipeline == wanted.pipeline and names.get(found.table) == wanted.name:
        return "another table of this pipeline has this name there"
    if is_at(wanted, found):
        return ""
    if found.pipeline != wanted.pipeline:
        return f"the name leads to {found.location} there, which this pipeline has not registered"
    if not place(found.location).startswith(f"{place(lake)}/"):
        return f"the name leads to {found.location} there, outside of lake.uri"
    return ""


def is_as_wanted(wanted: Entry, found: Found) -> bool:
    """Whether nothing is to be done about an entry that is ours, where the catalog lists columns as Hive does."""
    return (
        is_at(wanted, found)
        and tuple(found.columns) == wanted.listed
        and (found.pipeline, found.table) == (wanted.pipeline, wanted.table)
    )


def is_at(wanted: Entry, found: Found) -> bool:
    """Whether what was found leads to the lake table."""
    return place(found.location) == place(wanted.location)


def place(location: str) -> str:
    """The same for each spelling of one location."""
    scheme, separator, rest = location.partition(":")
    if not separator:
        scheme, rest = "file", location
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    if scheme == "file":
        return f"file:/{unquote(rest).strip('/')}"
    return f"{scheme}:{rest.rstrip('/')}"
