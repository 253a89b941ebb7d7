"""Which lake table says what closes the gap of a source table that feeds several."""

import uuid
from typing import Any

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.contract.entries import Lost
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.reasons import Reason
from sluice.contract.resyncs import Cause
from sluice.errors import ApplyError, VerificationFailed
from sluice.ingest.snapshot.reader import SnapshotRaced, TableLocked, TableRefused
from sluice.manifest.values import TableState
from sluice.manifest.writer import ManifestLog
from sluice.operate.compare import verify
from sluice.operate.compare.comparing import Comparison, not_compared
from sluice.operate.compare.verify import Run
from sluice.source.sessions import SourceOptions
from sluice.store.memory import MemoryStore
from tests.support.manifests import open_log, opened, put, snapshot, table
from tests.support.recorded import row

TARGETS = LakeTarget("changelog"), LakeTarget(name="a"), LakeTarget(name="b")
NOBODY: Any = None


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    store = MemoryStore(uuid.uuid4().hex)
    log = open_log(store, through_lsn=10)
    put(log, table(), through_lsn=10)
    put(log, snapshot(), through_lsn=10)
    ManifestLog.open(store, opened(lost=Lost("slot lost", ("7",))), log.state, through_lsn=20)
    monkeypatch.setattr(Run, "_known", lambda _: NOBODY)
    monkeypatch.setattr(Run, "compared", lambda *_: [])
    return Run.of(
        SourceOptions(dsn="", slot="", publication="", application_name=""),
        store,
        NOBODY,
        load_share=1.0,
        wait_seconds=0.0,
        targets_of=lambda _: TARGETS,
    )


def asked(run: Run, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Comparison | Exception]) -> list[str]:
    """Of which lake tables the gap is to be closed, in order. All that have no answer can be compared."""
    found: list[str] = []

    def close(_: Any, __: Any, ___: Any, state: TableState, **____: Any) -> Comparison:
        found.append(state.target_name)
        answer = answers.get(state.target_name, not_compared(state, "", passing=False))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(verify, "close_gap", close)
    run.repaired(list(run.lake_tables().values()))
    return found


def test_a_lake_table_that_cannot_be_compared_leaves_it_to_the_next_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = not_compared(run.lake_tables()["7"], "it has every change", passing=False)
    assert asked(run, monkeypatch, {"": changelog}) == ["", "a"]


@pytest.mark.parametrize("kind", [VerificationFailed, ApplyError, SnapshotRaced, TableLocked, TableRefused])
def test_a_table_whose_gap_cannot_be_closed_now_ends_no_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    assert asked(run, monkeypatch, {"": kind("not now")}) == [""]


def test_a_lake_table_that_is_not_as_it_should_be_is_not_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody put into it would not be read again for the others."""
    why = Reason.of(Cause.VALUE, "somebody changed it")
    stale = {key: row("t7", "stale", table_id="7", target=key.partition("/")[2], why=why) for key in ("7", "7/a")}
    log = AppliedLog(1, "a", "2030-01-01T00:00:00+00:00", stale)
    run.store.create(keys.apply_log(1), log.encode())
    assert asked(run, monkeypatch, {}) == ["b"]
