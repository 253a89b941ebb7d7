"""A boundary as the applier states it: one position, one Delta version of every table.

Invariant: a statement is read whole or not at all. A newer format is refused by name, an unknown field is passed by.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sluice_lake.errors import FormatTooNew, LakeError, TableLeftOut, UnknownTable
from sluice_lake.positions import lsn_of, show, time_of

FORMAT_VERSION = 1
FOLDER = ".sluice/boundary/"
IN_A_FOLDER = 1000
_NEVER = "0001-01-01T00:00:00+00:00"
_PLAIN = re.compile(r'[."]')
_FIRST = re.compile(r'"((?:[^"]|"")*)"|[^.]*')


@dataclass(frozen=True, slots=True)
class Table:
    """One lake table at a boundary: Delta `version` of the table at `path` below the lake's address. `marker` is a
    transaction identifier that the table has at that version, with the version `marker_version`.
    """

    schema: str
    table: str
    path: str
    version: int
    marker: str
    marker_version: int

    @property
    def name(self) -> str:
        """`schema.table`; a part with a dot or a double quote is quoted as in SQL."""
        return f"{_part(self.schema)}.{_part(self.table)}"

    @property
    def own_name(self) -> str:
        """That of the lake table: of one that has a name of its own, as in `orders/orders_history`, that name."""
        return self.table.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Boundary:
    """All `tables` hold every transaction that ended at the source at or before `lsn`, and none that ended later.

    `time` is when the last of these was committed, by the source's clock: nothing in the tables was committed later.
    Everything that was committed at or before `reached` is in them: nothing shows that of a later time.
    The lake offers a boundary for `retention` after the next one was published. `left_out` names the tables that
    are not part of it, with their states. Positions of boundaries before the number `first` are of another log.
    """

    number: int
    pipeline: str
    manifest: str
    lsn: int
    time: datetime
    published_at: datetime
    retention: timedelta
    tables: tuple[Table, ...]
    left_out: Mapping[str, str]
    reached: datetime
    first: int = 0

    def __str__(self) -> str:
        return f"{show(self.lsn)} of {self.time.isoformat(timespec='milliseconds')}"

    def named(self, name: str) -> Table:
        """The table called `name`: `schema.table`, or the table's own name, which is the one in `public` or else the
        only one of that name. Raises UnknownTable, TableLeftOut.
        """
        for table in self.tables:
            if name == table.name:
                return table
        found = self.called(name)
        if out := self.left_out_as(name):
            left, state = next(iter(out.items()))
            raise TableLeftOut(
                f"{left} is {state}, and not part of the boundary {self}",
                state=state,
                hint=f"`sluice tables` says why; `sluice resync {left}` reads a stale table again",
            )
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownTable(f"more than one table is called {name}: {', '.join(one.name for one in found)}")
        known = ", ".join(sorted(table.name for table in self.tables)[:10])
        raise UnknownTable(f"no table is called {name} at the boundary {self}", hint=f"it has: {known or 'none'}")

    def called(self, name: str) -> list[Table]:
        """The tables that may be meant by `name`, without a schema or with one: more than one where it says too little.
        What the source calls so comes before lake tables with a name of their own.
        """
        own = [table for table in self.tables if name == f"{_part(table.schema)}.{_part(self.name_in_schema(table))}"]
        sources = [table for table in self.tables if table.table == name]
        alike = sources or [table for table in self.tables if table.own_name == name]
        return [table for table in alike if table.schema == "public"] or alike or own

    def left_out_as(self, name: str) -> dict[str, str]:
        """The tables that `name` may mean and that are not part of it, with their states: but for those that it would
        not mean beside the tables that are.
        """
        found = self.called(name)
        if any(name in (table.name, table.table) for table in found if table.schema == "public"):
            return {}
        of_sources = [table for table in found if table.table == name]
        of_public = any(table.schema == "public" for table in found)
        out = {}
        for one, state in self.left_out.items():
            schema, table = parts_of(one)
            is_source = table == name
            later = (of_sources and not is_source) or (of_public and schema != "public" and not is_source)
            if one == name or ((is_source or table.rpartition("/")[2] == name) and not later):
                out[one] = state
        return out

    def views(self, named: Iterable[tuple[str, Table]], *, engine: str) -> dict[str, Table]:
        """Tables by the names of their views in `engine`, which knows no case. Raises UnknownTable when it takes the
        views of two tables for one: the later one would take the place of the other.
        """
        found: dict[str, Table] = {}
        seen: dict[str, Table] = {}
        for view, table in named:
            other = seen.setdefault(view.casefold(), table)
            if other is not table:
                raise UnknownTable(
                    f"the views of {other.name} and {table.name} are both called {view} in {engine}",
                    hint="ask for the tables that you need, and for one of these",
                )
            found[view] = table
        return found

    def name_in_schema(self, table: Table) -> str:
        """The own name of `table` where no other one of its schema has it, else the one with that of its source."""
        alike = [one for one in self.tables if one.schema == table.schema]
        taken = any(table.own_name in (one.table, one.own_name) for one in alike if one is not table)
        return table.table if taken else table.own_name


def decoded(data: bytes) -> Boundary:
    """The boundary that `data` spells. Raises FormatTooNew, LakeError."""
    try:
        value: dict[str, Any] = json.loads(data)
        version = value["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatTooNew(
                f"a boundary of the lake has format version {version}; this package reads up to {FORMAT_VERSION}",
                hint="install a newer sluice-lake",
            )
        names = ("schema", "table", "path", "version", "marker", "marker_version")
        return Boundary(
            number=int(value["number"]),
            pipeline=str(value["pipeline"]),
            manifest=str(value["manifest"]),
            lsn=lsn_of(str(value["lsn"])),
            time=time_of(str(value["time"])),
            published_at=time_of(str(value["published_at"])),
            retention=timedelta(seconds=float(value["retention_seconds"])),
            tables=tuple(Table(*(one[name] for name in names)) for one in value["tables"]),
            left_out=dict(value["left_out"]),
            # An older applier does not state it: then no time is known to be reached.
            reached=time_of(str(value.get("reached") or _NEVER)),
            first=int(value.get("first", 0)),
        )
    except LakeError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LakeError("a boundary of the lake cannot be read: it is damaged") from error


def folder_of(number: int) -> str:
    """The part of the path in front of the object of boundary `number`."""
    return f"{number // IN_A_FOLDER:013d}"


def key_of(pipeline: str, number: int) -> str:
    """Where boundary `number` lies below the lake's address."""
    return f"{FOLDER}{pipeline}/{folder_of(number)}/{number:016d}.json"


def number_in(key: str) -> int:
    """The number in the key of a boundary; 0 for any other object."""
    name = key.rpartition("/")[2]
    match = re.fullmatch(r"([0-9]{16})\.json", name)
    return int(match[1]) if match else 0


def _part(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if _PLAIN.search(name) else name


def parts_of(name: str) -> tuple[str, str]:
    """Schema and table in `name`, as a boundary spells it, without quotes."""
    match = _FIRST.match(name)
    assert match is not None
    table = match.string[match.end() + 1 :]
    schema = match[0] if match[1] is None else match[1].replace('""', '"')
    return schema, table[1:-1].replace('""', '"') if table[:1] == table[-1:] == '"' else table
