"""P1, P2 and P9: ingest beside pg_recvlogical on the same WAL.

Each round both start from copies of one slot. Ours decodes every value into typed Parquet on a
local store with a durable manifest; the reference reads the same messages and throws them away.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract.entries import Changes, Segment
from sluice.manifest.reader import read_entries
from sluice.store.opening import open_store
from tests.bench.contest import Contestant, Outcome, console, outcome_of, said, show, take_turns, timed_process
from tools.local.postgres import PostgresServer, temporary_server

SETTINGS = {
    "shared_buffers": "1GB",
    "logical_decoding_work_mem": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "synchronous_commit": "off",
}

W1_TABLE = (
    "CREATE TABLE w1 (id int8 PRIMARY KEY, customer_id int4, status text, amount numeric(12,2), "
    "created_at timestamptz, note text,"
    " qty int4, flag bool, price float8, uid uuid)"
)
W1_STATEMENTS = (
    (
        "INSERT INTO w1 SELECT i, i % 10000, (ARRAY['new','paid','sent','done'])[i % 4 + 1], (i % 100000) / 100.0,"
        " timestamptz '2024-01-01' + i * interval '1 second', 'note of order number ' || i || "
        "repeat('x', i % 40), i % 100, i % 2 = 0, sqrt(i),"
        " md5(i::text)::uuid FROM generate_series(1, 1000000) i"
    ),
    "UPDATE w1 SET status = 'late', amount = amount + 1 WHERE id <= 200000",
    "DELETE FROM w1 WHERE id > 950000",
)
W1_CHANGES = {"i": 1_000_000, "u": 200_000, "d": 50_000}
SLOT = "bench"
W2_TRANSACTIONS = ((140_000, "-N"), (100_000, ""))


Verify = Callable[[Path], None]


class Arena:
    """A server with a workload in its WAL, a slot before it, and a spool as it was then."""

    def __init__(self, server: PostgresServer, directory: Path, *, tables: tuple[str, ...], slot: str = SLOT) -> None:
        self.server = server
        self.directory = directory
        self._slot = slot
        """Every round of ours starts from a copy of the one that was kept before the workload; and the publication.
        """
        self.pristine = directory / f"pristine_{slot}"
        self.pristine.mkdir()
        self._sql(f"CREATE PUBLICATION {self._slot} FOR TABLE " + ", ".join(tables))
        self._ingest(self.pristine, "setup")
        self._sql(f"SELECT pg_copy_logical_replication_slot('{self._slot}', '{self._slot}_before')")
        self.end_lsn = ""
        self.received_mb = 0.0

    def finish_workload(self) -> None:
        self._sql("CHECKPOINT")
        self.end_lsn = self._sql("SELECT pg_current_wal_insert_lsn()")
        self._sql("SELECT pg_logical_emit_message(true, 'bench', 'end')")
        self._sql("SELECT pg_switch_wal()")

    @contextmanager
    def slot(self, name: str) -> Iterator[str]:
        """A slot of that name, before the workload, for as long as the context lasts."""
        self._sql(f"SELECT pg_copy_logical_replication_slot('{self._slot}_before', '{name}')")
        yield name
        self._sql(f"SELECT pg_drop_replication_slot('{name}')")

    def reference(self, number: int) -> Outcome:
        with self.slot(f"reference_{number}") as slot:
            tool = str(self.server.bin_dir / "pg_recvlogical")
            reading = [tool, "-d", self.server.dsn(), "-S", slot, "--start", "-f", "/dev/null"]
            until = ["-E", self.end_lsn, "--no-loop"]
            how = ["-o", "proto_version=1", "-o", f"publication_names={self._slot}", "-s", "1", "-F", "0"]
            return timed_process([*reading, *until, *how])

    def discarded(self, number: int) -> Outcome:
        """The same messages, received by a client of our own that keeps none."""
        with self.slot(f"discarded_{number}") as slot:
            return outcome_of(self._run("discard_once", self.server.dsn(), slot, self._slot, self.end_lsn))

    def ours(self, number: int, verify: Verify) -> Outcome:
        spool = self.directory / f"spool_{self._slot}_{number}"
        shutil.copytree(self.pristine, spool)
        self._sql(f"SELECT pg_drop_replication_slot('{self._slot}')")
        self._sql(f"SELECT pg_copy_logical_replication_slot('{self._slot}_before', '{self._slot}')")
        result = self._ingest(spool, self.end_lsn)
        if result["reconnects"]:
            raise RuntimeError("the connection was lost on the way: the seconds are those since then")
        self.received_mb = result["received_mb"]
        verify(spool)
        shutil.rmtree(spool)
        return outcome_of(result)

    def idle(self, seconds: int) -> tuple[float, float]:
        """(fraction of a core, objects written a minute) of a pipeline with nothing to do."""
        before = sum(1 for path in self.pristine.rglob("*") if path.is_file())
        result = self._ingest(self.pristine, f"{seconds}s")
        after = sum(1 for path in self.pristine.rglob("*") if path.is_file())
        return result["cpu_s"] / seconds, (after - before) * 60 / seconds

    def _ingest(self, spool: Path, until: str) -> dict[str, float]:
        return self._run("ingest_once", self.server.dsn(), self._slot, self._slot, str(spool), until)

    def _run(self, program: str, *arguments: str) -> dict[str, float]:
        return said(sys.executable, "-m", f"tests.bench.{program}", *arguments)

    def _sql(self, statement: str) -> str:
        return sql(self.server, statement)


def sql(server: PostgresServer, *statements: str) -> str:
    """What the last of them answers, if it does."""
    found = None
    with server.superuser() as connection:
        for statement in statements:
            row = connection.execute(statement.encode())
            found = row.fetchone() if row.description else None
    return str(found[0]) if found else ""


@contextmanager
def w1() -> Iterator[tuple[Arena, Verify]]:
    """One transaction of 1,000,000 inserts, one of 200,000 updates and one of 50,000 deletes in the WAL, and what
    proves that a spool has them.
    """
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        with server.superuser() as connection:
            connection.execute(W1_TABLE.encode())
        arena = Arena(server, Path(directory), tables=("w1",))
        console.print("W1: writing the workload")
        with server.superuser() as connection:
            for statement in W1_STATEMENTS:
                connection.execute(statement.encode())
            checks = connection.execute(
                "SELECT count(*), sum(id), sum(amount)::text, sum(length(note)) FROM w1"
            ).fetchone()
        arena.finish_workload()
        expected = tuple(checks or ())

        def verify(spool: Path) -> None:
            changes = segments(spool)
            counted: dict[str, int] = {}
            for segment in changes:
                for op, count in segment.ops.items():
                    counted[op] = counted.get(op, 0) + count
            if counted != W1_CHANGES:
                raise RuntimeError(f"W1: the spool holds {counted}, not {W1_CHANGES}")
            found = _final_rows(spool, changes)
            if found != expected:
                raise RuntimeError("W1: the rows in the spool do not add up to the table's")

        yield arena, verify


def p1(rounds: int) -> dict[str, float | None]:
    """P1: one transaction of 1,000,000 inserts, one of 200,000 updates, one of 50,000 deletes."""
    with w1() as (arena, verify):
        return _contest("P1", arena, verify, rounds, rows=sum(W1_CHANGES.values()))


def p2(rounds: int) -> dict[str, float | None]:
    """P2: pgbench, 140,000 simple updates and 100,000 TPC-B-like transactions."""
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        pgbench = str(server.bin_dir / "pgbench")
        subprocess.run([pgbench, "-i", "-q", "-s", "10", server.dsn()], check=True, capture_output=True)
        tables = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
        arena = Arena(server, Path(directory), tables=tables)
        total = 0
        for transactions, mode in W2_TRANSACTIONS:
            console.print(f"P2: writing {transactions} transactions")
            command = [pgbench, *mode.split(), "-n", "-c", "4", "-t", str(transactions // 4), server.dsn()]
            subprocess.run(command, check=True, capture_output=True)
            total += transactions * (2 if mode else 4)
        arena.finish_workload()

        def verify(spool: Path) -> None:
            state = open_store(spool.as_uri(), prefix="bench/", options={})
            commits = sum(
                len(entry.body.commits)
                for entry, _ in read_entries(state, after_seq=0)
                if isinstance(entry.body, Changes)
            )
            rows = sum(segment.rows for segment in segments(spool))
            if (commits, rows) != (sum(count for count, _ in W2_TRANSACTIONS), total):
                raise RuntimeError(f"P2: the spool holds {commits} transactions and {rows} rows, not {total} rows")

        return _contest("P2", arena, verify, rounds, rows=total)


def p9(_rounds: int) -> dict[str, float | None]:
    """An idle pipeline for a minute."""
    with temporary_server() as server, tempfile.TemporaryDirectory() as directory:
        with server.superuser() as connection:
            connection.execute(W1_TABLE.encode())
        arena = Arena(server, Path(directory), tables=("w1",))
        fraction, puts = arena.idle(60)
        console.print(f"P9 idle: {fraction:.4f} of a core, {puts:.1f} objects a minute")
        return {"cpu_fraction": fraction, "puts_per_minute": puts}


def _contest(name: str, arena: Arena, verify: Verify, rounds: int, *, rows: int) -> dict[str, float | None]:
    ours = Contestant("sluice, to typed Parquet", lambda number: arena.ours(number, verify))
    reference = Contestant("pg_recvlogical, to /dev/null", arena.reference)
    discarding = Contestant("our reader, thrown away", arena.discarded)
    contestants = [reference, discarding, ours]
    take_turns(name, contestants, rounds=rounds)
    show(name, contestants)
    return {
        "ours_s": ours.median_s,
        "reference_s": reference.median_s,
        "ratio": reference.median_s / ours.median_s,
        "of_discarding": ours.median_s / discarding.median_s,
        "ours_min_s": ours.min_s,
        "reference_min_s": reference.min_s,
        "rows_s": rows / ours.median_s,
        "mb_s": arena.received_mb / ours.median_s,
        "cpu_s": ours.median("cpu_s"),
        "peak_rss_mb": ours.median("peak_rss_mb"),
    }


def segments(spool: Path) -> list[Segment]:
    """Every segment of changes in a spool, in manifest order."""
    store = open_store(spool.as_uri(), prefix="bench/", options={})
    return [
        segment
        for entry, _ in read_entries(store, after_seq=0)
        if isinstance(entry.body, Changes)
        for segment in entry.body.segments
    ]


def _final_rows(spool: Path, changes: list[Segment]) -> tuple[object, ...]:
    """count, sum(id), sum(amount), sum(length(note)) of what the changes leave when they are taken
    by (commit LSN, ordinal), in SQL's terms.
    """
    parts = []
    for segment in changes:
        part = pq.read_table(
            spool / "bench" / segment.key,
            columns=["id", "amount", "note", "_sluice_op", "_sluice_lsn", "_sluice_ordinal", "_sluice_old"],
        )
        if segment.body is not None:
            position = part.schema.get_field_index("_sluice_lsn")
            part = part.set_column(position, "_sluice_lsn", pa.array(np.full(len(part), segment.body.end_lsn)))
        key = pc.if_else(pc.equal(part["_sluice_op"], "d"), pc.struct_field(part["_sluice_old"], "id"), part["id"])
        parts.append(part.append_column("key", key).drop_columns(["_sluice_old", "id"]))
    rows = pa.concat_tables(parts).sort_by(
        [("key", "ascending"), ("_sluice_lsn", "ascending"), ("_sluice_ordinal", "ascending")]
    )
    keys = rows["key"].to_numpy()
    last = np.append(keys[1:] != keys[:-1], True)
    left = rows.filter(pa.array(last)).filter(pc.not_equal(pc.field("_sluice_op"), "d"))
    total = pc.sum(left["amount"].cast(pa.decimal128(30, 2))).as_py()
    return len(left), pc.sum(left["key"]).as_py(), str(total), pc.sum(pc.utf8_length(left["note"])).as_py()
