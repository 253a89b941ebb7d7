"""Source and lake compared table by table, each at one position of both.

Invariant: what is called equal was compared row by row at one LSN, all columns as the lake stores
them. What could not be compared is said, and is never called equal. (PostgreSQL: Streaming Replication
Protocol, CREATE_REPLICATION_SLOT; Functions, pg_logical_emit_message.)
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

import structlog

from sluice.contract import keys
from sluice.contract.applied import AppliedTable
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.row_form import Difference, LakeAnswer, LakeQuestion, Row, Sums, differing, range_bits
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED
from sluice.errors import ApplyError, ServiceError, SourceError, TableUnavailable, UnsupportedChange
from sluice.ingest.snapshot.reader import TableRefused
from sluice.lsn import show
from sluice.manifest.targets import TargetState, fed
from sluice.manifest.values import TableState
from sluice.operate.compare.source_side import Form, Load, SourceTable, opened
from sluice.printable import counted
from sluice.source.catalog import Catalog
from sluice.source.sessions import KnownSource, open_query, translated
from sluice.source.snapshot_export import SnapshotHolder
from sluice.tables.schemas import has_shape

ATTEMPTS = 3
"""At a table that changes its shape, or is locked, while it is compared."""
SNAPSHOT_SECONDS = 300.0
"""How old a snapshot may get before the next table takes a new one: it keeps the source from vacuuming."""
ROWS_LISTED = 500_000
"""Rows of differing ranges that are listed and compared at a time."""
MOST_LISTED = 2_000_000
"""More rows than this that differ are not listed: each is kept in memory, and a new snapshot is cheaper."""
ROWS_UNKNOWN = 2_000_000
"""Taken for the size of a table that was never analyzed."""
BARRIER = "sluice_verify"
"""Prefix of the logical message that has the log pass the position of the snapshot."""

Ask = Callable[[LakeQuestion], Callable[[], LakeAnswer]]
"""Asks at once; what it returns waits for the answer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out for one table, of which `lsn` is the position of both sides. `rows` are those of
    the source. `reason` says why it was not compared, and `passing` that it can be later.

    Unless `all_listed`, more rows differ than `difference` has.

    `repaired` rows were read again before it. `changed_keys` were taken from the spool, because
    `delta_version` was complete through `base_lsn` only. `compared` is what one of the `lake_rows` is
    called.
    """

    table_id: str
    schema_name: str
    table_name: str
    outcome: str
    reason: str = ""
    passing: bool = False
    lsn: int = 0
    delta_version: int = -1
    base_lsn: int = 0
    changed_keys: int = 0
    rows: int = 0
    lake_rows: int = 0
    seconds: float = 0.0
    key_columns: tuple[str, ...] = ()
    repaired: int = 0
    difference: Difference = field(default_factory=Difference)
    all_listed: bool = True
    target: str = ""
    compared: str = "row"

    @property
    def name(self) -> str:
        """That of the lake table."""
        return keys.target_title(self.schema_name, self.table_name, self.target)

    @property
    def source_name(self) -> str:
        """That of its source table."""
        return f"{self.schema_name}.{self.table_name}"

    @property
    def key(self) -> str:
        """By which the lake table is known."""
        return keys.target_key(self.table_id, self.target)


class Comparing:
    """Compares tables with what `ask` says of the lake. `wait_seconds` is how long ingest and applier
    may take to pass a snapshot's position; `hasten` tells them of it. `applied` reads what the applier says now of
    its lake tables, by key. `left_out` is what of all tables does not come to the lake: a difference may be that, and
    is none that anybody could repair.
    """

    def __init__(
        self,
        options: KnownSource,
        ask: Ask,
        *,
        load: Load,
        wait_seconds: float,
        hasten: Callable[[int], None] = lambda _: None,
        applied: Callable[[], Mapping[str, AppliedTable]] = dict,
        left_out: str = "",
    ) -> None:
        self._options = options
        self._ask = ask
        self._load = load
        self._wait_seconds = wait_seconds
        self._hasten = hasten
        self._applied = applied
        self._left_out = left_out
        self._logger = structlog.get_logger("verify")

    def compare(self, states: Sequence[TableState], stale: Mapping[str, str] | None = None) -> Iterator[Comparison]:
        """One verdict for each. Lake tables in `stale`, by key with the reason, are not compared. Raises
        ServiceError when nothing can be compared any more.
        """
        form = Form.of(self._options, secrets.randbits(63))
        holder: SnapshotHolder | None = None
        facts: dict[str, TableFacts | None] = {}
        applied: Mapping[str, AppliedTable] = {}
        taken_at = 0.0
        try:
            for position, state in enumerate(states):
                if state.state == State.GAP:
                    yield not_compared(state, f"it has a gap: {state.reason}", passing=True)
                    continue
                if stale is not None and state.key in stale:
                    reason = f"it is stale: {stale[state.key]}; `sluice resync` reads it again"
                    yield not_compared(state, reason, passing=True)
                    continue
                self._logger.info("comparing", table=state.title, number=position + 1, of=len(states))
                for attempt in range(1, ATTEMPTS + 1):
                    if holder is None or time.monotonic() - taken_at > SNAPSHOT_SECONDS:
                        if holder is not None:
                            holder.close()
                        facts, applied = self._facts(states[position:]), self._applied()
                        holder, taken_at = self._snapshot(), time.monotonic()
                    try:
                        found = self._one(state, facts.get(state.table_id), holder, form, applied.get(state.key))
                        yield self._meant(state, found)
                        break
                    except (TableUnavailable, _Passing) as error:
                        holder.close()
                        holder = None
                        if attempt == ATTEMPTS or isinstance(error, _WaitedOut):
                            yield not_compared(state, str(error), passing=True)
                            break
        finally:
            if holder is not None:
                holder.close()

    def _meant(self, state: TableState, found: Comparison) -> Comparison:
        if not self._left_out or found.outcome != DIFFERENT:
            return found
        rows = counted(len(found.difference), "row differs", "rows differ")
        return not_compared(state, f"{rows}, which may be {self._left_out}", passing=False)

    def _facts(self, states: Sequence[TableState]) -> dict[str, TableFacts | None]:
        """From before the snapshot: a table that differs from them afterwards has changed since."""
        with closing(Catalog(open_query(self._options))) as catalog:
            return {
                state.table_id: catalog.table(int(state.table_id), publication=self._options.publication)
                for state in states
            }

    def _snapshot(self) -> SnapshotHolder:
        holder = SnapshotHolder.open(self._options)
        self._logger.info("snapshot taken", lsn=show(holder.consistent_lsn))
        # Without both ingest may take progress_interval to record that the position is behind it: where nobody writes,
        # it may not be yet, and a message alone is not sent to an ingest that keeps none.
        with (
            suppress(SourceError),
            closing(open_query(self._options)) as connection,
            translated("writing a logical message"),
        ):
            connection.execute(
                "SELECT pg_catalog.pg_logical_emit_message(true, %s, %s::text)", (BARRIER, secrets.token_hex(8))
            )
        self._hasten(holder.consistent_lsn)
        return holder

    def gap(self, state: TableState) -> Iterator[tuple[Comparison, TableFacts | None, SnapshotHolder]]:
        """How the rows in front of the table's gap differ from the source as of the verdict's LSN: once,
        with the snapshot of it, which ends with the iteration. Raises as `compare` does.
        """
        form = Form.of(self._options, secrets.randbits(63))
        for attempt in range(1, ATTEMPTS + 1):
            facts, before = self._facts([state])[state.table_id], self._applied().get(state.key)
            with closing(self._snapshot()) as holder:
                try:
                    verdict = self._one(state, facts, holder, form, before)
                except (TableUnavailable, _Passing) as error:
                    if attempt < ATTEMPTS and not isinstance(error, _WaitedOut):
                        continue
                    verdict = not_compared(state, str(error), passing=True)
                yield replace(verdict, lsn=holder.consistent_lsn), facts, holder
                return

    def _one(
        self,
        state: TableState,
        facts: TableFacts | None,
        holder: SnapshotHolder,
        form: Form,
        before: AppliedTable | None,
    ) -> Comparison:
        reason = _why_not_now(state, facts)
        if reason or facts is None:
            return not_compared(state, reason, passing=True)
        if left_out := _left_out(facts):
            return not_compared(state, left_out, passing=False)
        schema = state.schemas[state.schema_version].carried
        began = time.monotonic()
        question = LakeQuestion(
            state.table_id,
            state.generation,
            schema.version,
            state.gap.from_lsn if state.gap is not None else holder.consistent_lsn,
            form.seed,
            range_bits(facts.estimated_rows or ROWS_UNKNOWN),
            form.as_hex,
            self._wait_seconds,
            form.probes,
            target=state.target_name,
            before=before,
        )
        try:
            with opened(
                self._options,
                schema=schema,
                facts=facts,
                snapshot=holder.snapshot_name,
                form=form,
                bits=question.bits,
                load=self._load,
            ) as table:
                return self._compared(state, schema, table, question, began)
        except (TableRefused, UnsupportedChange) as error:
            return not_compared(state, str(error), passing=True)

    def _compared(
        self, state: TableState, schema: TableSchema, table: SourceTable, question: LakeQuestion, began: float
    ) -> Comparison:
        answer_of = self._ask(question)
        source = table.sums()
        answer = _require(answer_of())
        if answer.refused:
            return not_compared(state, answer.refused, passing=False)
        lake: Sums = {number: (rows, total) for number, rows, total in answer.sums}
        ranges = sorted(
            number for number in source.keys() | lake.keys() if source.get(number, (0, 0)) != lake.get(number, (0, 0))
        )
        difference, all_listed = Difference(), True
        for some in _portions(ranges, source, lake):
            if len(difference) >= MOST_LISTED:
                all_listed = False
                break
            answer_of = self._ask(_about(question, some))
            here = list(table.rows(some))
            there = [Row(*row) for row in _require(answer_of()).rows]
            difference = difference.plus(differing(here, there))
        if ranges and not len(difference):
            raise _Passing("the sums of its ranges differ, but its rows do not")
        return Comparison(
            state.table_id,
            state.schema_name,
            state.table_name,
            DIFFERENT if ranges else EQUAL,
            lsn=question.lsn,
            delta_version=answer.delta_version,
            base_lsn=answer.base_lsn,
            changed_keys=answer.changed,
            rows=sum(rows for rows, _ in source.values()),
            lake_rows=sum(rows for rows, _ in lake.values()),
            seconds=time.monotonic() - began,
            key_columns=tuple(column.name for column in schema.key_columns),
            difference=difference,
            all_listed=all_listed,
            target=question.target,
            compared=fed(state).compared if isinstance(state, TargetState) else "row",
        )


def _left_out(facts: TableFacts) -> str:
    """Which changes of the table never come, empty when all do."""
    missing = set("iudt") - set(facts.publishes)
    kinds = {"i": "inserts", "u": "updates", "d": "deletes", "t": "TRUNCATE"}
    said = ", ".join(kinds[letter] for letter in "iudt" if letter in missing)
    return f"the publication leaves out its {said}: the lake is meant to differ" if missing else ""


def _why_not_now(state: TableState, facts: TableFacts | None) -> str:
    """Why a table cannot be compared now, empty when it can."""
    schema = state.schemas.get(state.schema_version)
    at_gap = state.state == State.GAP and state.gap is not None
    if schema is None or not (state.state.has_initial_rows or at_gap):
        return f"it is {state.state}{': ' + state.reason if state.reason else ''}"
    if facts is None or not facts.published:
        return "the publication does not carry it any more"
    if not has_shape(facts, schema):
        return "its columns have changed at the source, and the stream has not reached that change yet"
    return ""


def not_compared(state: TableState, reason: str, *, passing: bool) -> Comparison:
    """A table that was not compared for `reason`, which is `passing` when it can be later."""
    names = (state.table_id, state.schema_name, state.table_name)
    return Comparison(*names, NOT_COMPARED, reason, passing, target=state.target_name)


def _require(answer: LakeAnswer) -> LakeAnswer:
    if answer.error:
        passing = _WaitedOut if answer.waited else _Passing
        raise (
            passing(answer.error, hint=answer.hint)
            if answer.exit_code == ApplyError.exit_code
            else _Final(answer.error, hint=answer.hint)
        )
    return answer


class _Passing(ApplyError):
    """Said by the process that reads the lake."""


class _WaitedOut(_Passing):
    """Another attempt would wait as long again."""


class _Final(ServiceError):
    """The same, of what stays wrong: damaged or missing objects."""

    exit_code = 6


def _about(question: LakeQuestion, ranges: Sequence[int]) -> LakeQuestion:
    return replace(question, ranges=tuple(ranges))


def _portions(ranges: Sequence[int], source: Sums, lake: Sums) -> Iterator[list[int]]:
    """`ranges` in portions of about ROWS_LISTED rows."""
    taken: list[int] = []
    rows = 0
    for number in ranges:
        size = max(source.get(number, (0, 0))[0], lake.get(number, (0, 0))[0])
        if taken and rows + size > ROWS_LISTED:
            yield taken
            taken, rows = [], 0
        taken.append(number)
        rows += size
    if taken:
        yield taken
