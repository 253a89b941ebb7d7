"""A pipeline of real processes whose tables are changed in ways that only the catalog shows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sluice import lsn
from sluice.contract.table_state import State
from sluice.manifest.reader import read_entries
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState, TableState
from sluice.source import ddl_signal
from sluice.store.opening import open_store
from tests.support.background import Background
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SCHEMA = (
    "CREATE TABLE noise (id int PRIMARY KEY)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE label (id int PRIMARY KEY, m mood)",
    "INSERT INTO label VALUES (1, 'sad')",
    "CREATE TABLE added (id int PRIMARY KEY)",
    "INSERT INTO added VALUES (1)",
    "CREATE TABLE cast_using (id int PRIMARY KEY, v int)",
    "INSERT INTO cast_using VALUES (1, 1)",
    "CREATE TABLE attached (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE attached_1 PARTITION OF attached FOR VALUES FROM (0) TO (10)",
    "INSERT INTO attached VALUES (1)",
    "CREATE TABLE truncated (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE truncated_1 PARTITION OF truncated FOR VALUES FROM (0) TO (10)",
    "INSERT INTO truncated VALUES (1)",
    "CREATE TABLE x (id int PRIMARY KEY)",
    "INSERT INTO x VALUES (1)",
    "CREATE TABLE y (id int PRIMARY KEY)",
    "INSERT INTO y VALUES (2)",
    "CREATE PUBLICATION {p} FOR ALL TABLES WITH (publish_via_partition_root = true)",
)

MORE_NOISE = "INSERT INTO noise SELECT COALESCE(max(id), 0) + 1 FROM noise"


@dataclass(frozen=True)
class Kind:
    """A change of `table`, whether the manifest's state of it has the change, and whether its rows do."""

    table: str
    change: str
    known: Callable[[TableState], bool]
    shown: Callable[[list[dict[str, Any]]], bool]


def _begun_again(table: TableState) -> bool:
    return table.generation > 1


KINDS = (
    Kind(
        "label",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        _begun_again,
        lambda rows: [row["m"] for row in rows] == ["blue"],
    ),
    Kind(
        "added",
        "ALTER TABLE added ADD COLUMN c int DEFAULT 5",
        lambda table: len(table.schemas[table.schema_version].columns) == 2,
        lambda rows: [row.get("c") for row in rows] == [5],
    ),
    Kind(
        "cast_using",
        "ALTER TABLE cast_using ALTER v TYPE text USING v || 'x'",
        _begun_again,
        lambda rows: [row["v"] for row in rows] == ["1x"],
    ),
    Kind(
        "attached",
        "CREATE TABLE attached_2 AS SELECT 11 AS id; ALTER TABLE attached_2 ALTER id SET NOT NULL; "
        "ALTER TABLE attached ATTACH PARTITION attached_2 FOR VALUES FROM (10) TO (20)",
        _begun_again,
        lambda rows: sorted(row["id"] for row in rows) == [1, 11],
    ),
    Kind("truncated", "TRUNCATE truncated_1", _begun_again, lambda rows: rows == []),
    Kind(
        "x",
        "BEGIN; ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y; COMMIT",
        lambda table: table.table_name == "y",
        lambda rows: [row["id"] for row in rows] == [2],
    ),
)


Signal = Literal["", "beside", "alone"]
PARTED = ("attached", "truncated")
"""Tables of which the DDL signal does not say everything."""


class QuietChanges:
    """A pipeline whose other tables are quiet, and what was done to them up to which position. `signal`: the source
    has none, one `beside` tables for which the catalog is looked at anyhow, or one that says it all `alone`.
    """

    def __init__(self, database: Database, directory: Path, *, signal: Signal = "") -> None:
        self.database = database
        self.signal = signal
        self.kinds = tuple(kind for kind in KINDS if signal != "alone" or kind.table not in PARTED)
        settings = {
            "source": {"slot": database.slot, "publication": database.publication},
            "spool": {"max_delay": "200ms"},
            "apply": {"poll": "200ms", "complete_every": "1s"},
        }
        self.pipeline = Pipeline(directory, name="t", dsn=database.dsn, settings=settings)
        self.store = open_store(self.pipeline.spool_uri, prefix="t/", options={})
        self.changed: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self._prefixes = [PipelineState()]
        parted = [statement for statement in SCHEMA if any(name in statement for name in PARTED)]
        schema = [statement for statement in SCHEMA if signal != "alone" or statement not in parted]
        database.execute(*(statement.format(p=database.publication) for statement in schema))
        database.execute(*(ddl_signal.statements() if signal else ()))

    def newest(self) -> PipelineState:
        """The newest state of the manifest. Every one before it was looked at."""
        state = self._prefixes[-1]
        for entry, sha256 in read_entries(self.store, after_seq=state.seq, previous_sha256=state.previous_sha256):
            state = reduce(state, entry, sha256)
            self._check(state)
            self._prefixes.append(state)
        return state

    def _check(self, state: PipelineState) -> None:
        for kind in self.kinds:
            behind = self.changed.get(kind.table, state.examined_lsn + 1) <= state.examined_lsn
            if behind:
                table = state.tables[self.ids[kind.table]]
                assert table.state != State.LIVE or kind.known(table), f"entry {state.seq} passes over {kind.table}"

    def is_settled(self) -> bool:
        state = self.newest()
        return (
            len(state.tables) > len(self.kinds)
            and {table.state for table in state.tables.values()} - {State.DETACHED} == {State.LIVE}
            and state.examined_lsn > max(self.changed.values(), default=0)
            and state.examined_lsn > 0
        )

    def relies_on_signal(self, process: SluiceProcess) -> bool:
        """Whether completeness follows without looks, where it ever does."""
        if self.signal == "alone":
            self.database.execute(MORE_NOISE)
        return self.signal != "alone" or "the DDL signal is relied upon" in process.log_tail(1000)

    def change_all(self) -> None:
        """Does everything, one after the other, each with the position where it had committed."""
        state = self.newest()
        self.ids = {table.table_name: table.table_id for table in state.tables.values()}
        with self.database.connect() as connection:
            for kind in self.kinds:
                connection.execute(kind.change.encode())
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                self.changed[kind.table] = lsn.parse(row[0])

    def noise(self) -> Background:
        """Another table changes all the time, so that the position of the manifest moves."""

        def insert() -> None:
            with self.database.connect() as connection:
                while not noise.stopped.wait(0.02):
                    connection.execute(f"{MORE_NOISE} ON CONFLICT DO NOTHING".encode())

        noise = Background(insert)
        return noise
