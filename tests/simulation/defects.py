"""Defects that this project had, or that a guard keeps away, put back one by one: what the simulator must find.

Each is a patch of the product's own code, and names the row of docs/reliability.md that it stands for.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from sluice.contract.receipt import DurableReceipt
from sluice.contract.table_state import State
from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.assemble.shape_cuts import ShapeCuts
from sluice.ingest.circuit_breaker import CircuitBreaker
from sluice.ingest.commit.committer import CommitLine
from sluice.ingest.encode.builder import Builder
from sluice.manifest.values import TableState
from sluice.manifest.writer import ManifestLog
from sluice.tables.catalog_seen import CatalogJudge
from sluice.tables.shape_history import ShapeHistory
from sluice_spark.progress.ledger import Ledger
from sluice_spark.read.window import PendingChanges


@dataclass(frozen=True, slots=True)
class Defect:
    """`row` says what was wrong, `put_back` does it inside a block."""

    row: str
    put_back: Callable[[], AbstractContextManager[Any]]


def _replaced(owner: Any, name: str, function: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, function)


# the applier

_keep = PendingChanges.keep


def _keep_and_go_on_behind(self: PendingChanges, count: int) -> None:
    """What is forgotten is not read again from its first entry on."""
    before = self.skipped
    _keep(self, count)
    if self.skipped is not None and self.skipped != before:
        self.skipped = self.skipped[0] + 1, self.skipped[1]


_take_in = Ledger.take_in


def _take_in_as_examined(self: Ledger, entry: Any, sha256: str, **options: Any) -> None:
    _take_in(self, replace(entry, examined_lsn=entry.through_lsn), sha256, **options)


def _through_the_entry_before(self: Ledger, table_id: str, entry: Any, lsn: int) -> int:
    return lsn


_following = PendingChanges.next_window


def _windows_of_any_identity(self: PendingChanges, **options: Any) -> Any:
    self.changes = deque(item._replace(identity=0) for item in self.changes)
    return _following(self, **options)


def _after_nothing(self: TableState, seq: int) -> int:
    return 0


# the followed tables

_follow_catalog = CatalogJudge._follow_catalog


def _follow_catalog_at_once(self: CatalogJudge, facts: Any, state: TableState, wal_end: int) -> None:
    _follow_catalog(self, facts, state, 0)
    now = self._register.states()[state.table_id]
    if now.state == State.PENDING:
        _follow_catalog(self, facts, now, 0)


def _no_new_version_at_an_old_position(self: ShapeHistory, *arguments: Any, **options: Any) -> Any:
    state = arguments[0]
    return [schema for schema in state.schemas.values() if schema.version == state.schema_version]


# from the stream to the manifest


@contextmanager
def _failures_are_passed_over() -> Iterator[None]:
    def publish(self: ManifestLog, body: Any, *, from_lsn: int, through_lsn: int) -> DurableReceipt:
        return self._append(body, epoch=self._state.epoch, through_lsn=through_lsn, extra={})

    def guarded(self: CircuitBreaker, work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return work()
            except BaseException as error:
                self.fail(error)
                raise

        return run

    with (
        patch.object(ManifestLog, "publish", publish),
        patch.object(CircuitBreaker, "check", lambda self: None),
        patch.object(CircuitBreaker, "guarded", guarded),
    ):
        yield


def _receipt_before_the_entry(self: CommitLine, unit: Any) -> Any:
    self._on_receipt(DurableReceipt(seq=self._committer._log.state.seq + 1, through_lsn=unit.through_lsn))

    def commit() -> None:
        self._committer.commit(unit)

    return self._committer.submit(self._breaker.guarded(commit))


def _subtransactions_never_roll_back(self: Assembler, message: Any) -> None:
    if message.xid == message.subxid:
        _stream_abort(self, message)


_stream_abort = Assembler._stream_abort


def _truncate_of_the_transaction(self: Assembler, message: Any) -> None:
    _truncate(self, replace(message, stream_xid=None))


_truncate = Assembler._truncate


def _prepared_is_not_recorded(self: Builder) -> Any:
    for one in self._prepared.values():
        one.recorded = True
    return []


def _units_of_two_shapes(self: ShapeCuts, table: Any) -> Any:
    return [table]


DEFECTS = {
    "forgotten entries": Defect(
        "changes that were forgotten while a table was paused did not come again when it went on",
        _replaced(PendingChanges, "keep", _keep_and_go_on_behind),
    ),
    "complete without a look": Defect(
        "a table was called complete through positions that no look at the catalog had examined",
        _replaced(Ledger, "take_in", _take_in_as_examined),
    ),
    "complete in front of a shape": Defect(
        "a table was called complete in front of the entry with a shape that a look had found before",
        _replaced(Ledger, "_through", _through_the_entry_before),
    ),
    "windows of two keys": Defect(
        "a window had rows from before and from behind a change of what identifies them",
        _replaced(PendingChanges, "next_window", _windows_of_any_identity),
    ),
    "changes that the snapshot has": Defect(
        "changes that are in the snapshot were applied again", _replaced(TableState, "after_lsn", _after_nothing)
    ),
    "catalog ahead of the stream": Defect(
        "a shape that the catalog shows was followed before the stream had come to it",
        _replaced(CatalogJudge, "_follow_catalog", _follow_catalog_at_once),
    ),
    "a guess for open transactions": Defect(
        "rows of an open transaction were written in the newest version, whatever the transaction had altered",
        _replaced(ShapeHistory, "possible", _no_new_version_at_an_old_position),
    ),
    "a failure that is passed over": Defect(
        "a unit whose upload or append failed was left out, and the next unit was published and acknowledged",
        _failures_are_passed_over,
    ),
    "acknowledged too early": Defect(
        "the server was allowed to forget what was not in the manifest",
        _replaced(CommitLine, "submit", _receipt_before_the_entry),
    ),
    "rolled-back savepoints": Defect(
        "rows of a savepoint that was rolled back were published with their streamed transaction",
        _replaced(Assembler, "_stream_abort", _subtransactions_never_roll_back),
    ),
    "a truncate of a savepoint": Defect(
        "a TRUNCATE in a streamed transaction was published although its savepoint rolled back afterwards",
        _replaced(Assembler, "_truncate", _truncate_of_the_transaction),
    ),
    "prepared and not recorded": Defect(
        "the rows of a prepared transaction were not durable when its PREPARE was acknowledged",
        _replaced(Builder, "_record_prepared", _prepared_is_not_recorded),
    ),
    "one unit of two keys": Defect(
        "a unit had rows from before and from behind a change of what identifies them",
        _replaced(ShapeCuts, "parts", _units_of_two_shapes),
    ),
}
"""By a short name."""
