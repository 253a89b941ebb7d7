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


def test_nothing_may_be_acknowledged_before_the_first_entry(tmp_path: Path) -> None:
    AckOracle(tmp_path)(status(0))
    with pytest.raises(AssertionError, match="acknowledged 1"):
        AckOracle(tmp_path)(status(1))


def test_what_the_newest_entry_holds_may_be_acknowledged_and_no_byte_more(tmp_path: Path) -> None:
    oracle = AckOracle(tmp_path)
    store(tmp_path, seq=1, through_lsn=100)
    oracle(status(100))
    with pytest.raises(AssertionError, match="acknowledged 101, but manifest entry 1 holds through 100"):
        oracle(status(101))
    store(tmp_path, seq=2, through_lsn=101)
    oracle(status(101))


def test_an_entry_behind_a_gap_holds_nothing(tmp_path: Path) -> None:
    store(tmp_path, seq=1, through_lsn=100)
    store(tmp_path, seq=3, through_lsn=300)
    with pytest.raises(AssertionError, match="entry 1 holds through 100"):
        AckOracle(tmp_path)(status(300))


def test_an_acknowledgement_never_goes_backwards(tmp_path: Path) -> None:
    oracle = AckOracle(tmp_path)
    store(tmp_path, seq=1, through_lsn=100)
    oracle(status(90))
    with pytest.raises(AssertionError, match="acknowledged 80 after 90"):
        oracle(status(80))


def test_more_may_not_be_flushed_than_was_received(tmp_path: Path) -> None:
    store(tmp_path, seq=1, through_lsn=100)
    with pytest.raises(AssertionError, match="out of order"):
        AckOracle(tmp_path)(status(90, write=80))
