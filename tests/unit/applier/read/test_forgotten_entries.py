"""Entries that are forgotten while they wait and read again later, at any moment of generated histories."""

import random
from dataclasses import replace

import pytest

from sluice.contract.entries import Changes, Commits, Entry, Progress, Segment, Table
from sluice.contract.evolution import identified_since
from sluice.contract.schema import TableSchema
from sluice_spark.read.window import PendingChanges, Window
from tests.support.manifests import schema

HISTORIES, STEPS = 1500, 4000


def _schemas(chance: random.Random) -> dict[int, TableSchema]:
    """Versions of which some identify rows by the key and others do not."""
    schemas: dict[int, TableSchema] = {}
    keyed = True
    for version in range(1, chance.randint(1, 4) + 1):
        keyed = keyed if version == 1 or chance.random() < 0.4 else not keyed
        shape = schema("t", version)
        schemas[version] = replace(shape, columns=tuple(replace(one, key=keyed and one.key) for one in shape.columns))
    return schemas


def _history(chance: random.Random, schemas: dict[int, TableSchema]) -> list[Entry]:
    """A version begins alone, or in the entry of its first rows. The catalog was examined through any position."""
    entries: list[Entry] = []
    through, examined, version = 10, 5, 1
    for seq in range(2, 2 + chance.randint(4, 16)):
        examined = min(through, examined + chance.choice([0, 0, 0, 5, 30]))
        kind, end = chance.random(), through
        body: Changes | Progress | Table
        tables: tuple[Table, ...] = ()
        if chance.random() < 0.2 and version < len(schemas):
            version += 1
            tables = (Table("t", "public", "t", None, 1, lsn=through - 1, schema=schemas[version]),)
        if tables and kind < 0.5:
            body = tables[0]
        else:
            end += 10 if kind < 0.75 else chance.choice([0, 10])
            names = [f"{seq}.{number}" for number in range(chance.randint(1, 2))] if kind < 0.75 else []
            found = tuple(Segment(name, "t", version, 1, 10, "", end, end, {"i": 1}) for name in names)
            body = Changes(found, Commits(), tables=tables) if found or tables else Progress()
        entries.append(Entry(seq, 1, "", through, end, "", body, examined))
        through = end
    return entries


class _Lake:
    """What became of the windows: the rows in their order, and the version of the table."""

    def __init__(self, schemas: dict[int, TableSchema]) -> None:
        self.schemas = schemas
        self.version = 1
        self.rows: list[str] = []

    def commit(self, window: Window) -> None:
        """Rows that are identified as those of an older version would be left out."""
        self.version = max(window.schema_version, self.version, *(one.schema_version for one in window.segments))
        for segment in window.segments:
            assert identified_since(self.schemas, segment.schema_version) == identified_since(
                self.schemas, self.version
            ), f"{segment.key} comes behind version {self.version}"
            self.rows.append(segment.key)


def _apply(chance: random.Random, schemas: dict[int, TableSchema], entries: list[Entry]) -> _Lake:
    """Reads, forgets, reads again, begins and ends windows in any order, until nothing is left."""
    lake, pending = _Lake(schemas), PendingChanges(1, 1, 1, has_snapshot=True)
    by_seq = {one.seq: one for one in entries}
    flight: Window | None = None
    read, read_lsn = 1, 10
    for _ in range(STEPS):
        act = chance.choice(["read", "keep", "again", "window", "done"])
        if act == "read" and read < entries[-1].seq:
            entry = by_seq[read + 1]
            if isinstance(entry.body, Changes | Table):
                pending.take_in(entry, "t", through_lsn=read_lsn, schemas=schemas)
            read, read_lsn = entry.seq, entry.through_lsn
        elif act == "keep" and chance.random() < 0.3:
            pending.keep(chance.choice([0, 0, 1, 2]))
        elif act == "again" and pending.skipped and not pending.changes and pending.skipped[0] <= read:
            pending.take_again(by_seq[pending.skipped[0]], "t", newest_seq=read, schemas=schemas)
        elif act == "window" and flight is None:
            flight = pending.next_window(max_bytes=chance.choice([10, 25, 999]), until_seq=read)
        elif act == "done" and flight is not None:
            lake.commit(flight)
            pending.done(flight)
            flight = None
        rests = flight is None and not pending.changes and (pending.skipped is None or pending.skipped[0] > read)
        if rests and read == entries[-1].seq:
            return lake
    raise AssertionError("it never comes to rest")


@pytest.mark.parametrize("part", range(3))
def test_whatever_is_forgotten_every_row_and_version_comes_once_and_in_order(part: int) -> None:
    for seed in range(part * HISTORIES // 3, (part + 1) * HISTORIES // 3):
        chance = random.Random(seed)
        schemas = _schemas(chance)
        entries = _history(chance, schemas)
        lake = _apply(chance, schemas, entries)
        rows = [one.key for entry in entries if isinstance(entry.body, Changes) for one in entry.body.segments]
        begun = [table.schema for one in entries for table in one.tables]
        assert lake.rows == rows, f"seed {seed}"
        assert lake.version == max((one.version for one in begun if one), default=1), f"seed {seed}"
