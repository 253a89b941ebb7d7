"""What a replay says that it made, when the tables are as they stand in its own log."""

from pathlib import Path
from typing import Any

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from sluice.errors import ApplyError, UsageError, WriterFenced
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark import replayed
from sluice_spark.options import ApplyOptions

OPTIONS = ApplyOptions("shop", "file:///spool", "file:///lake", last_seq=9, last_lsn=90)
NO_SPARK: Any = None
"""Asked only for the rows of a table that was made."""


def _store(folder: Path, state: State, why: Reason | None = None) -> ObjectStore:
    """Of a replay whose log has one table, which comes to `state` at its end."""
    store = open_store(folder.as_uri(), prefix="shop/", options={})
    row = AppliedTable("7", "public", "t", "public/t", "mirror", 1, state, why, through_seq=3, complete_through_lsn=30)
    store.create(keys.apply_log(1), AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", {"7": row}).encode())
    return store


def test_a_table_that_was_dropped_before_the_position_is_not_waited_for(tmp_path: Path) -> None:
    """It is in the log when another table has its name now, which is the one that was asked for."""
    assert replayed.made(OPTIONS, _store(tmp_path, State.DETACHED), NO_SPARK)["tables"] == []


@pytest.mark.parametrize("state", [State.LIVE, State.STALE, State.QUARANTINED, State.SNAPSHOT])
def test_a_table_that_did_not_come_to_the_position_is_named(tmp_path: Path, state: State) -> None:
    is_final = state is State.STALE
    with pytest.raises(UsageError if is_final else ApplyError, match=r"public\.t (was not|cannot be) made") as caught:
        replayed.made(OPTIONS, _store(tmp_path, state), NO_SPARK)
    assert ("give the same command again" in caught.value.hint) == (not is_final), "a stale table never gets further"


def test_a_replay_whose_spool_was_pruned_in_the_middle_advises_no_resync_of_the_pipeline(tmp_path: Path) -> None:
    """The pipeline has its table. A new snapshot of it would bring back no entry that the replay needs."""
    why = Reason(ReasonCode.PRUNED, {"entry": "3", "floor": "5"})
    with pytest.raises(UsageError, match="pruned through entry 5") as caught:
        replayed.made(OPTIONS, _store(tmp_path, State.STALE, why), NO_SPARK)
    assert "resync" not in f"{caught.value}{caught.value.hint}"


def test_a_replay_of_another_kind_than_it_was_begun_with_advises_no_resync_of_the_pipeline(tmp_path: Path) -> None:
    why = Reason(ReasonCode.OTHER_MODE, {"held": "mirror", "wanted": "history"})
    with pytest.raises(UsageError, match="the lake table holds a mirror") as caught:
        replayed.made(OPTIONS, _store(tmp_path, State.STALE, why), NO_SPARK)
    assert "resync" not in f"{caught.value}{caught.value.hint}"


def test_the_second_of_two_replays_at_once_does_not_blame_the_applier_of_the_pipeline(tmp_path: Path) -> None:
    with (
        pytest.raises(WriterFenced, match="another process makes this replay"),
        replayed.watched(OPTIONS, _store(tmp_path, State.LIVE)),
    ):
        raise WriterFenced("another applier owns this pipeline: a")
