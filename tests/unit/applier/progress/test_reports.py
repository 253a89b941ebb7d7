"""Reports of an applier are numbered, and a number that is taken ends nobody who owns the pipeline."""

import time
import uuid
from collections.abc import Iterator

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import Complete
from sluice.errors import StoreUnavailable, WriterFenced
from sluice.manifest.newest_record import newest_complete, newest_log
from sluice.store.memory import MemoryStore
from sluice_spark.progress.reports import KEPT
from tests.support.offers import fenced, offers, reports

LOST = "store.create.after=raise:StoreUnavailable@{}"


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    yield MemoryStore(uuid.uuid4().hex, prefix="shop/")
    faults.arm("")


def _lake() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex, prefix="")


def _numbers(store: MemoryStore, folder: str) -> list[int]:
    return [keys.record_number(key) for key in store.list(folder)]


def test_a_report_whose_answer_was_lost_is_followed_by_the_next_one(store: MemoryStore) -> None:
    written = reports(store, offers(_lake()))
    written.log({})
    faults.arm(LOST.format(1))
    with pytest.raises(StoreUnavailable):
        written.log({})
    written.log({}, configuration_refused="later")
    newest = newest_log(store).read()
    assert newest is not None
    assert (newest.number, newest.configuration_refused) == (3, "later")
    for _ in range(2 * KEPT):
        written.log({})
    assert len(_numbers(store, keys.APPLY_LOG)) == KEPT


def test_the_last_report_of_an_applier_that_was_replaced_does_not_end_its_successor(store: MemoryStore) -> None:
    replaced, successor = (reports(store, offers(_lake())) for _ in range(2))
    replaced.log({}, configuration_refused="earlier")
    successor.log({})
    newest = newest_log(store).read()
    assert newest is not None
    assert (newest.number, newest.configuration_refused) == (2, "")


def test_an_applier_that_was_replaced_reports_nothing_behind_its_successor(store: MemoryStore) -> None:
    replaced = reports(store, offers(_lake()), require_owner=fenced)
    reports(store, offers(_lake())).log({})
    with pytest.raises(WriterFenced):
        replaced.log({})
    assert _numbers(store, keys.APPLY_LOG) == [1]


@pytest.mark.parametrize("passage", [1, 2], ids=["in the lake", "in the spool"])
def test_a_boundary_whose_answer_was_lost_is_followed_by_the_next_one(store: MemoryStore, passage: int) -> None:
    lake = _lake()
    written = reports(store, offers(lake))
    faults.arm(LOST.format(passage))
    with pytest.raises(StoreUnavailable):
        written.complete(Complete(0, 10, 1, "", {}), time.monotonic())
    written.complete(Complete(0, 20, 2, "", {}), time.monotonic())
    newest = newest_complete(store).read()
    assert newest is not None
    assert (newest.number, newest.lsn) == (2, 20)
