"""What has not been read yet is never taken for nothing: also where what was read has no commits."""

import pytest

from sluice.contract.entries import Progress
from sluice.health import backlog
from tests.support.manifests import put
from tests.unit.test_runtime_backlog import Spool


def test_changes_behind_a_long_idle_time_are_not_taken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An applier that ended while the source was quiet: entries of idle progress, and then changes that are old."""
    monkeypatch.setattr(backlog, "READ_AT_ONCE", 10)
    spool = Spool()
    spool.table("1")
    spool.copy("1")
    spool.applied("1", through_seq=spool.log.state.seq)
    for _ in range(20):
        put(spool.log, Progress(), through_lsn=spool.log.state.through_lsn + 10)
    spool.change("1", at_us=5_000_000)
    pending = spool.look()
    assert pending.lag_seconds("1", now=100_000.0) != 0.0
