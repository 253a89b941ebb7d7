"""The oracle that guards every acknowledgement in the end-to-end tests objects when it must, and only then."""

import json
from pathlib import Path

import pytest

from sluice.contract import keys
from tests.support.pgproxy import Status
from tests.support.pipeline import AckOracle


def status(flush: int, *, write: int = 1000) -> Status:
    return Status(connection=1, at=0.0, write=write, flush=flush, apply=flush, reply_requested=False)


def store(spool: Path, *, seq: int, through_lsn: int) -> None:
    path = spool / keys.manifest_entry(seq)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"through_lsn": through_lsn}))


@pytest.mark.parametrize(
    ("entries", "sent", "said"),
    [
        ({}, [0, 1], "acknowledged 1"),
        ({1: 100}, [100, 101], "acknowledged 101, but manifest entry 1 holds through 100"),
        ({1: 100, 3: 300}, [300], "entry 1 holds through 100"),
        ({1: 100}, [90, 80], "acknowledged 80 after 90"),
    ],
    ids=["before the first entry", "one byte more", "behind a gap", "backwards"],
)
def test_what_the_newest_entry_holds_may_be_acknowledged_and_no_byte_more(
    tmp_path: Path, entries: dict[int, int], sent: list[int], said: str
) -> None:
    oracle, (*right, wrong) = AckOracle(tmp_path), sent
    for seq, through_lsn in entries.items():
        store(tmp_path, seq=seq, through_lsn=through_lsn)
    for flush in right:
        oracle(status(flush))
    with pytest.raises(AssertionError, match=said):
        oracle(status(wrong))


def test_more_may_be_acknowledged_once_it_is_stored_and_never_more_than_was_received(tmp_path: Path) -> None:
    oracle = AckOracle(tmp_path)
    for seq, through_lsn in ((1, 100), (2, 101)):
        store(tmp_path, seq=seq, through_lsn=through_lsn)
        oracle(status(through_lsn))
    with pytest.raises(AssertionError, match="out of order"):
        oracle(status(101, write=80))
