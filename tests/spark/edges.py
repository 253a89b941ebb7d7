"""One pipeline whose applier is made to fail, one hand-over after the other, with a real Spark, and
whose lake is compared with what the manifest holds.

A case arms a fault point, lets it fail with as much waiting behind it as the case says, and goes on
in good health. What is judged is the lake, and every report that was written on the way: the Delta
version of a table that calls itself live has the rows of the entries that the report names, no more
and no less.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract import envelope, keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.schema import TableSchema
from sluice.errors import ObjectMissing, ServiceError
from tests.chaos.stages import Situation
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.lake import rows_in
from tests.spark.model import SCHEMA, named, row

LOG = named("log")
"""A changelog, in which a window that is applied twice shows: a MERGE by key would hide it."""
MODES = {"public.log": {"targets": [{"kind": "changelog"}]}}
TABLES = (SCHEMA, LOG)

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True)
class Edge:
    """Where the applier hands over: `point` fails on its first passage after the change. `in_snapshot`
    says that the change is a snapshot and not a transaction.

    A point `on_loop` is passed by the loop, which reads nothing more while it is held there.
    """

    point: str
    on_loop: bool = False
    in_snapshot: bool = False


WORKER = ("apply.window.before", "apply.read.after", "apply.commit.before", "apply.commit.after", "apply.window.after")
LOOP = (
    "apply.entries.read",
    "apply.log.before",
    "apply.log.after",
    "apply.boundary.before",
    "apply.boundary.after",
    "apply.complete.before",
    "apply.complete.after",
)
EDGES = (
    *(Edge(point) for point in WORKER),
    *(Edge(point, on_loop=True) for point in LOOP),
    *(Edge(point, in_snapshot=True) for point in WORKER),
    *(
        Edge(point, on_loop=True, in_snapshot=True)
        for point in ("apply.log.before", "apply.complete.before", "apply.complete.after")
    ),
)


class Expected:
    """What a lake table holds after each manifest entry, by what was published."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.generation = 1
        self.rows: dict[int, int] = {}
        self.changes: Rows = Counter()
        self._after: list[tuple[int, int, int, Rows]] = []

    def note(self, seq: int, lsn: int) -> None:
        now: Rows = Counter(self.rows.items()) if self.schema is SCHEMA else Counter(self.changes)
        self._after.append((self.generation, seq, lsn, now))

    def at_seq(self, seq: int) -> Rows:
        return [rows for _, found, _, rows in self._after if found <= seq][-1]

    def at_lsn(self, lsn: int, generation: int) -> Rows:
        """A generation of a changelog begins without the changes of the one before, at the same
        position.
        """
        return [rows for of, _, found, rows in self._after if found <= lsn and of == generation][-1]

    @property
    def newest(self) -> Rows:
        return self._after[-1][3]


def _read_seq(work: Running) -> int:
    ledger = getattr(work.applier, "_ledger", None)
    return ledger.read_seq if ledger is not None else 0


class Edges:
    """Two live tables and nothing to do. Used by one case after the other, as long as each ends
    well.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.pipeline = Pipeline(spark, folder)
        self.cases = 0
        self.sound = True
        self._numbers = 0
        self._judged: set[str] = set()
        self._expected = {schema.table_id: Expected(schema) for schema in TABLES}
        for schema in TABLES:
            self._resync(schema, begun=self.pipeline.manifest.table(schema))
        self.pipeline.apply(tables=MODES)
        self.assert_equal()

    def case(self, edge: Edge, error: str, situation: Situation) -> None:
        """Fails at `edge` with `error` (empty: it only takes its time), and goes on in good health.
        AssertionError says what is wrong.
        """
        self.sound = False
        self.cases += 1
        # Nobody waits for the first MERGE of a process here, which warming up would make in the background.
        with running(self.pipeline, ends=None, warm=True, workers=2, tables=MODES, report_seconds=0.2) as work:
            work.until(lambda: _read_seq(work) == self.pipeline.manifest.seq, what="the applier has read the manifest")
            self._fail(work, edge, error, situation)
        faults.arm("")
        assert all(isinstance(one, ServiceError) or type(one).__name__ == error for one in work.errors), work.errors
        self.assert_reports_true()
        self._go_on(error)
        self.sound = True

    def _fail(self, work: Running, edge: Edge, error: str, situation: Situation) -> None:
        """What it arms stays so until the applier has ended."""
        table, gate = TABLES[self.cases % len(TABLES)], self.pipeline.folder / f"gate-{self.cases}"
        faults.arm(f"{edge.point}=hold:{gate}{f'+raise:{error}' if error else ''}@1")
        try:
            if edge.in_snapshot:
                self._copy_again(table)
            else:
                self._transact(table)
            work.passes(edge.point)
            if situation is not Situation.IDLE:
                seq = self._transact(*TABLES)
                work.until(lambda: edge.on_loop or _read_seq(work) >= seq, what="what waits behind is read")
            if situation is Situation.DRAINING:
                work.stop.set()
        finally:
            gate.touch()
        if situation is not Situation.DRAINING:
            seq = self._transact(*TABLES)
            work.until(
                lambda: all(_settled(one, seq) for one in self.pipeline.reported().values()), what="it goes on or ends"
            )

    def _go_on(self, error: str) -> None:
        log = self.pipeline.apply(tables=MODES)
        stale = [schema for schema in TABLES if log.tables[schema.table_id].state == "stale"]
        assert not stale or error == "UnsupportedChange", (
            f"stale without a reason to be: {log.tables[stale[0].table_id].reason}"
        )
        for schema in stale:
            self._copy_again(schema)
        if stale:
            self.pipeline.apply(tables=MODES)
        self.assert_equal()

    def assert_equal(self) -> None:
        """Every table is live and the lake has what the manifest has, each change once."""
        reported = self.pipeline.reported()
        assert {table.state for table in reported.values()} == {"live"}, reported
        for schema in TABLES:
            _assert_same(self._lake(schema), self._expected[schema.table_id].newest, f"{schema.table_name} in the lake")
        assert self.pipeline.complete().seq == self.pipeline.manifest.seq
        self.assert_reports_true()

    def assert_reports_true(self) -> None:
        """Each report written since the last time says `live` and a position only of what the Delta
        version that it names holds.
        """
        store = self.pipeline.store
        for key in [*store.list(keys.APPLY_LOG), *store.list(keys.APPLY_COMPLETE)]:
            if key in self._judged:
                continue
            self._judged.add(key)
            try:
                data = store.get(key)
            except ObjectMissing:
                continue
            if key.startswith(keys.APPLY_LOG):
                for reported in AppliedLog.decode(data).tables.values():
                    self._judge(reported, key)
            else:
                self._judge_complete(Complete.decode(data), key)

    def _judge(self, said: AppliedTable, key: str) -> None:
        if said.state != "live":
            return
        expected, where = self._expected[said.table_id], f"{key}: {said.table_name}"
        held = self._lake(expected.schema, said.delta_version)
        seq, lsn = said.through_seq, said.complete_through_lsn
        _assert_same(held, expected.at_seq(seq), f"{where} through entry {seq}")
        _assert_same(held, expected.at_lsn(lsn, said.generation), f"{where} complete through {lsn}")

    def _judge_complete(self, complete: Complete, key: str) -> None:
        for schema in TABLES:
            version = complete.versions.get(schema.qualified_name)
            if version is not None:
                expected = self._expected[schema.table_id].at_seq(complete.seq)
                _assert_same(self._lake(schema, version), expected, f"{key}: {schema.table_name}")

    def _lake(self, schema: TableSchema, version: int | None = None) -> Rows:
        rows = rows_in(self.pipeline.path(schema.table_name), metadata=True, version=version)
        names = ("id", "v") if schema is SCHEMA else (envelope.OP, envelope.LSN, envelope.ORDINAL)
        return Counter(tuple(one[name] for name in names) for one in rows)

    # what happens at the source

    def _transact(self, *tables: TableSchema) -> int:
        """One transaction that inserts, updates and deletes in each of `tables`; its entry."""
        parts = []
        for schema in tables:
            self._numbers += 1
            expected = self._expected[schema.table_id]
            changes = [Change("i", row(self._numbers))]
            if expected.rows:
                updated = max(expected.rows)
                changes.append(Change("u", row(updated, self._numbers)))
                expected.rows[updated] = self._numbers
            if len(expected.rows) > 3:
                deleted = min(expected.rows)
                changes.append(Change("d", {}, old={"id": deleted}))
                del expected.rows[deleted]
            expected.rows[self._numbers] = 0
            parts.append((changes, schema))
        seq = self.pipeline.manifest.entry(parts)
        for changes, schema in parts:
            expected = self._expected[schema.table_id]
            expected.changes.update((change.op, change.lsn, change.ordinal) for change in changes)
            expected.note(seq, self.pipeline.manifest.lsn)
        return seq

    def _copy_again(self, schema: TableSchema) -> None:
        expected = self._expected[schema.table_id]
        self.pipeline.manifest.table(
            schema, state="stale", reason="somebody asked for it", generation=expected.generation, new=False
        )
        expected.generation += 1
        begun = self.pipeline.manifest.table(schema, generation=expected.generation, new=False)
        self._resync(schema, begun=begun)

    def _resync(self, schema: TableSchema, *, begun: int) -> None:
        """The snapshot of a generation that began with entry `begun`: a boundary between the two has
        it, at the same LSN.
        """
        expected = self._expected[schema.table_id]
        rows = [row(key, v) for key, v in expected.rows.items()]
        self.pipeline.manifest.snapshot(rows, schema, generation=expected.generation)
        lsn = self.pipeline.manifest.lsn
        expected.changes = Counter((envelope.OP_INSERT, lsn, place) for place in range(len(rows)))
        expected.note(begun, lsn)


def _settled(table: AppliedTable, seq: int) -> bool:
    return table.state == "stale" or (table.state == "live" and table.through_seq >= seq and not table.failing)


def _assert_same(found: Rows, expected: Rows, where: str) -> None:
    missing, extra = (expected - found).total(), (found - expected).total()
    assert missing + extra == 0, f"{where}: {missing} rows are missing and {extra} should not be there"
