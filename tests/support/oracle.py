"""What the spool holds, read from its files alone, and whether that is what the source holds. No
Spark, and nothing of the code that writes the files.

`Spool.read` follows the manifest and checks it on the way: numbers are dense, each entry continues
the bytes of the one before and its position, epochs and positions only grow, a transaction is
published once and in commit order, and every object that an entry names is there with the size and
the hash it names. `differences` replays snapshot and changes of each table into rows in memory and
compares them with the source by SQL.

A table that is not `live` says itself that it does not equal the source: `Verdict.state` and
`reason` have it, and its rows are not compared.
"""

import hashlib
import hmac
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from psycopg import sql

from tests.support.spool_rows import Part, Table, TornRows, place_of, replay
from tools.local.compare import SESSION
from tools.local.rendering import same_float

Change = tuple[str, str]
"""Table and kind of change, `i`, `u`, `d` or `t`."""

_FLOATS = {"float": 32, "double": 64, "array<float>": 32, "array<double>": 64}


@dataclass(frozen=True)
class Verdict:
    """What became of one table. `differences` is empty when its rows are equal, and says nothing unless `live`."""

    table: str
    state: str
    reason: str
    rows: int
    differences: tuple[str, ...]

    @property
    def is_silent_difference(self) -> bool:
        """Looks healthy and is not."""
        return self.state == "live" and bool(self.differences)


class Spool:
    """The manifest below `folder`, a pipeline's own prefix, as far as `read` has followed it."""

    def __init__(self, folder: Path, hash_keys: dict[str, bytes] | None = None) -> None:
        """`hash_keys` are those of column rules, by their ids."""
        self._folder = folder
        self.hash_keys = hash_keys or {}
        self._sha256 = ""
        self._tables: dict[str, str] = {}
        self._origin = ""
        self.seq = 0
        self.epoch = 0
        self.through_lsn = 0
        self.start_lsn = 0
        """Where the log begins: what ended at or before it is none of its business."""
        self.marked: set[str] = set()
        """Names of tables that were ever anything else than a snapshot and live, or in more than one
        generation: their rows need not be in the log one by one.
        """
        self.states: dict[str, str] = {}
        self.tables: dict[str, Table] = {}
        """By table id."""
        self._began: dict[tuple[str, int], int] = {}
        """How far the log was with the entry that began a generation: what ended by then, its snapshot must have."""
        self.complete: set[tuple[str, int]] = set()
        """Table ids and the generations of theirs whose snapshot is in the log."""
        self.transactions: dict[int, Counter[Change]] = {}
        """Rows by kind of each published transaction, by its commit's end LSN."""

    def read(self) -> None:
        """Follows the log to its end. AssertionError names the entry that breaks a rule."""
        while (path := self._entry(self.seq + 1)).exists():
            self._take(path.read_bytes())
        last = max((int(path.stem) for path in self._folder.glob("manifest/*.json")), default=0)
        assert last <= self.seq + 1, f"manifest entry {self.seq + 1} is missing, though entry {last} exists"

    @property
    def newest_seq(self) -> int:
        """The number of the last entry there is now, read or not."""
        seq = self.seq
        while self._entry(seq + 1).exists():
            seq += 1
        return seq

    def _entry(self, seq: int) -> Path:
        return self._folder / "manifest" / f"{seq:016d}.json"

    def _take(self, data: bytes) -> None:
        entry = json.loads(data)
        number, through_lsn, epoch, kind = entry["seq"], entry["through_lsn"], entry["epoch"], entry["kind"]
        assert number == self.seq + 1, f"entry {self.seq + 1} calls itself {number}"
        assert entry["previous_sha256"] == self._sha256, f"entry {number} does not continue entry {self.seq}"
        assert epoch == self.epoch + (kind == "opened"), f"entry {number} of epoch {epoch} follows epoch {self.epoch}"
        assert through_lsn >= self.through_lsn, f"entry {number} goes back from {self.through_lsn} to {through_lsn}"
        from_lsn = entry["from_lsn"]
        assert from_lsn == self.through_lsn, (
            f"entry {number} continues from {from_lsn}, but entry {self.seq} goes through {self.through_lsn}"
        )
        body = entry[kind]
        if kind == "table":
            self._table(body, through_lsn)
        elif kind == "snapshot":
            self._resync(body, number)
        elif kind == "changes":
            self._changes(body, number, through_lsn)
        else:
            self._opened(kind, body)
        if number == 1:
            self.start_lsn = through_lsn
        self.seq, self.epoch, self.through_lsn, self._sha256 = (
            number,
            epoch,
            through_lsn,
            hashlib.sha256(data).hexdigest(),
        )

    def _opened(self, kind: str, body: dict[str, Any]) -> None:
        """From here on other transactions may be sent: what was left out until now is missing in every table."""
        if kind != "opened":
            return
        if (self._origin, body["origin"]) == ("none", "any"):
            for table in self.tables.values():
                if table.generation in table.snapshots and table.state in ("live", "pending"):
                    table.state, table.reason = "stale", "source.origin was none"
                    self.states[table.name] = "stale"
                    self.marked.add(table.name)
        self._origin = body["origin"]

    def _table(self, body: dict[str, Any], through_lsn: int) -> None:
        self._tables[body["table_id"]] = body["table_name"]
        table = self.tables.setdefault(
            body["table_id"], Table(body["table_id"], body["schema_name"], body["table_name"])
        )
        table.schema, table.name = body["schema_name"], body["table_name"]
        if body["schema"]:
            table.schemas[body["schema"]["version"]] = body["schema"]
        if body["state"] is None:
            self.states[table.name] = table.state
            return
        self.states[table.name] = body["state"]
        self._began.setdefault((body["table_id"], body["generation"]), through_lsn)
        if body["state"] not in ("snapshot", "live") or body["generation"] > 1:
            self.marked.add(table.name)
        table.state, table.reason, table.generation = body["state"], _said(body["why"]), body["generation"]

    def _resync(self, body: dict[str, Any], number: int) -> None:
        generation = (body["table_id"], body["generation"])
        assert generation not in self.complete, f"entry {number} continues a snapshot that is complete"
        table = self.tables[body["table_id"]]
        lsn, parts = body["snapshot_lsn"], table.snapshots.setdefault(body["generation"], [])
        newest = table.snapshot_lsns.get(body["generation"], 0)
        assert newest <= lsn, f"entry {number} is of an older snapshot than the one before"
        assert self._began[generation] <= lsn, f"entry {number} is of a snapshot from before its generation began"
        table.first_lsns.setdefault(body["generation"], lsn)
        table.snapshot_lsns[body["generation"]] = lsn
        ranges = table.ranges.setdefault(body["generation"], {one: [] for one in body["relations"]})
        for one in body["ranges"]:
            ranges[one["relation"]].append((one["first"], one["end"]))
        for segment in body["segments"]:
            parts.append((lsn, Part(self._object(segment, number), segment["schema_version"], None, frozenset())))
        if body["final"]:
            _require_all_blocks(ranges, number)
            self.complete.add(generation)
            table.finals.add(body["generation"])
            # The entry that ends a snapshot is the one that makes the table live.
            table.state, table.reason = "live", ""
            self.states[table.name] = "live"

    def _changes(self, body: dict[str, Any], number: int, through_lsn: int) -> None:
        for table in body["tables"]:
            self._table(table, through_lsn)
        previous = self.through_lsn
        for end_lsn in body["commits"]["end_lsn"]:
            assert previous < end_lsn <= through_lsn, (
                f"entry {number}: the commit that ends at {end_lsn} was published before, or out of order"
            )
            self.transactions[end_lsn] = Counter()
            previous = end_lsn
        bodies = {commit["end_lsn"]: commit for commit in body["bodies"]}
        aborted = {end_lsn: _spelled_out(commit["aborted_xids"]) for end_lsn, commit in bodies.items()}
        self._require_one_identity(body["segments"], number)
        for segment in body["segments"]:
            end_lsn = segment["body"]
            commit = None if end_lsn is None else bodies[end_lsn]
            gone = set() if end_lsn is None else aborted[end_lsn]
            path = self._object(segment, number)
            self._rows(segment, path, number, gone, end_lsn)
            if segment["table_id"] in self.tables:
                self.tables[segment["table_id"]].changes.append(
                    Part(path, segment["schema_version"], commit, frozenset(gone))
                )

    def _require_one_identity(self, segments: list[dict[str, Any]], number: int) -> None:
        """All rows that an entry has of a table behind its snapshot are identified by the same columns."""
        found: dict[str, tuple[list[int], bool]] = {}
        for segment in segments:
            table = self.tables[segment["table_id"]]
            if segment["last_lsn"] <= table.snapshot_lsns.get(table.generation, segment["last_lsn"]):
                continue  # a snapshot has them
            schema = table.schemas[segment["schema_version"]]
            keys = [column["attnum"] for column in schema["columns"] if column["key"]]
            identity = (keys, not keys and schema["replica_identity"] == "f")
            assert found.setdefault(segment["table_id"], identity) == identity, (
                f"entry {number} has rows of {self._tables[segment['table_id']]} from both sides of a change of its key"
            )

    def _object(self, segment: dict[str, Any], number: int) -> Path:
        path: Path = self._folder / segment["key"]
        assert path.exists(), f"entry {number} names {segment['key']}, which is not there"
        data = path.read_bytes()
        assert len(data) == segment["bytes"], f"entry {number}: {segment['key']} has another size"
        assert hashlib.sha256(data).hexdigest() == segment["sha256"], (
            f"entry {number}: {segment['key']} has another content"
        )
        return path

    def _rows(self, segment: dict[str, Any], path: Path, number: int, gone: set[int], body_lsn: int | None) -> None:
        columns = pq.read_table(path, columns=["_sluice_lsn", "_sluice_op", "_sluice_xid"])
        lsns, ops, xids = (column.to_pylist() for column in columns.columns)
        name = self._tables[segment["table_id"]]
        for lsn, op, xid in zip(lsns, ops, xids, strict=True):
            if xid in gone:
                continue
            end_lsn = lsn if body_lsn is None else body_lsn
            assert end_lsn in self.transactions, f"entry {number} has rows of a transaction that nothing published"
            self.transactions[end_lsn][name, op] += 1

    # comparing

    def verdicts(self, connection: psycopg.Connection, publication: str) -> list[Verdict]:
        """One for each table of the publication. What is committed by now must have been `read`,
        and nothing may be written meanwhile.
        """
        published = _published(connection, publication)
        newest = {table.table_id: table for table in self.tables.values()}
        found = []
        for oid, (schema, name, columns) in sorted(published.items()):
            table = newest.get(str(oid))
            if table is None:
                found.append(Verdict(f"{schema}.{name}", "unknown", "the manifest does not know it", 0, ()))
            else:
                condition = _row_filter(connection, publication, oid)
                differences, rows = (
                    self._compare(connection, table, columns, condition) if table.state == "live" else ((), 0)
                )
                found.append(Verdict(f"{schema}.{name}", table.state, table.reason, rows, differences))
        return found

    def assert_equal(self, connection: psycopg.Connection, publication: str) -> list[Verdict]:
        """Fails with every difference of a table that calls itself live; the verdicts of all."""
        verdicts = self.verdicts(connection, publication)
        wrong = [
            f"{verdict.table}: {difference}"
            for verdict in verdicts
            if verdict.is_silent_difference
            for difference in verdict.differences
        ]
        assert not wrong, "\n".join(wrong)
        return verdicts

    def _ruled(self, text: str | None, rule: dict[str, Any] | None) -> str | None:
        """What a column rule makes of a value."""
        if text is None or rule is None:
            return text
        if rule["kind"] == "hash":
            return hmac.new(self.hash_keys[rule["key_id"]], text.encode(), "sha256").hexdigest()
        kept: str = rule["mask"] if rule["kind"] == "mask" else text[: rule["length"]]
        return kept

    def _compare(
        self, connection: psycopg.Connection, table: Table, columns: list[str], condition: str
    ) -> tuple[tuple[str, ...], int]:
        try:
            replayed = replay(table)
        except TornRows as torn:
            return (str(torn),), 0
        newest = table.schemas[max(table.schemas)]
        shape, excluded = newest["columns"], [one["column"]["name"] for one in newest["excluded"]]
        ours = [*(column["name"] for column in shape), *excluded]
        if sorted(ours) != sorted(columns):
            return (
                (
                    f"columns differ: the source publishes {sorted(set(columns) - set(ours))} more and "
                    f"{sorted(set(ours) - set(columns))} less"
                ),
            ), 0
        shape = [column for column in shape if not column["ignored"]]
        ours = [column["name"] for column in shape]
        bits = [_FLOATS.get(column["lake"]["sql"]) for column in shape]
        rules = [column["rule"] for column in shape]
        source = Counter(
            tuple(
                same_float(text, bits=width) if width else self._ruled(text, rule)
                for text, width, rule in zip(row, bits, rules, strict=True)
            )
            for row in _source_rows(connection, table, ours, condition)
        )
        places = [place_of(column) for column in shape]
        spool = Counter(
            tuple(
                same_float(row.get(place), bits=width) if width else row.get(place)
                for place, width in zip(places, bits, strict=True)
            )
            for row in replayed
        )
        lost, surplus = (source - spool).total(), (spool - source).total()
        found = []
        if lost or surplus:
            found.append(
                f"{lost} rows of {source.total()} are not in the spool, {surplus} rows of "
                f"{spool.total()} are not at the source"
            )
        return tuple(found), source.total()


def _said(why: dict[str, Any] | None) -> str:
    """The code and the parameters that an entry gives."""
    return "" if why is None else " ".join((why["code"], *why["parameters"].values()))


def _require_all_blocks(ranges: dict[str, list[tuple[int, int]]], number: int) -> None:
    """Each relation that a snapshot reads was read from its first block on, without end."""
    for found in ranges.values():
        end = 0
        for at, (first, its_end) in enumerate(sorted(found)):
            assert first == end, f"entry {number} ends a snapshot that lacks blocks, or has some twice"
            is_last = at == len(found) - 1
            assert its_end > first or (its_end == 0 and is_last), f"entry {number} has a range of no blocks"
            end = its_end
        assert found, f"entry {number} ends a snapshot that did not read a relation"
        assert end == 0, f"entry {number} ends a snapshot without the last blocks of a relation"


def _published(connection: psycopg.Connection, publication: str) -> dict[int, tuple[str, str, list[str]]]:
    """By oid: schema, name and published columns."""
    listed = "p.attnames" if connection.info.server_version >= 150000 else "NULL::name[]"
    found = connection.execute(
        f"SELECT c.oid::int8, n.nspname::text, c.relname::text, coalesce({listed}, ARRAY(SELECT "
        "a.attname FROM pg_attribute a"
        " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''))::text[]"
        " FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname JOIN pg_class "
        "c ON c.relnamespace = n.oid AND c.relname = p.tablename"
        " WHERE p.pubname = %s".encode(),
        (publication,),
    ).fetchall()
    return {oid: (schema, name, columns) for oid, schema, name, columns in found}


def _row_filter(connection: psycopg.Connection, publication: str, oid: int) -> str:
    """The SQL condition of the rows of a table that the publication sends."""
    if connection.info.server_version < 150000:
        return ""
    row = connection.execute(
        "SELECT p.rowfilter FROM pg_publication_tables p WHERE p.pubname = %s AND "
        "format('%%I.%%I', p.schemaname, p.tablename)::regclass::oid = %s",
        (publication, oid),
    ).fetchone()
    return f" WHERE {row[0]}" if row and row[0] else ""


def _source_rows(
    connection: psycopg.Connection, table: Table, columns: list[str], condition: str
) -> list[tuple[str | None, ...]]:
    with connection.transaction(), connection.cursor() as cursor:
        for name, value in SESSION.items():
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
        kind = cursor.execute(
            "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = %s", (int(table.table_id),)
        ).fetchone()
        only = sql.SQL("" if kind == ("p",) else "ONLY")
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        # COPY prints with the types' output functions, as the stream does; a cast to text would not
        # (boolean, character(n)).
        with cursor.copy(
            sql.SQL("COPY (SELECT {} FROM {} {}{}) TO STDOUT").format(
                listed,
                only,
                sql.Identifier(table.schema, table.name),
                sql.SQL(condition),
            )
        ) as copy:
            return list(copy.rows())


def _spelled_out(steps: list[int]) -> set[int]:
    """Every id of a list of distances: to the first of a run, to its last, to the first of the next."""
    xids: set[int] = set()
    for bound in range(0, len(steps), 2):
        first = sum(steps[: bound + 1])
        xids.update(range(first, first + steps[bound + 1] + 1))
    return xids
