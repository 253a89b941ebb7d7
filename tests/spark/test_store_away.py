"""An object store that does not answer for longer than the applier's lease: the applier waits,
takes its lease again and goes on, on its own.
"""

import threading

import pytest

from sluice.contract import keys
from sluice.errors import StoreUnavailable
from sluice.store.base import ObjectStore
from sluice_spark import applier
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA, row
from tests.support.forwarding import Forwarding

LEASE_SECONDS = 1.0


class AwayStore(Forwarding):
    """A store that answers nothing while `away` is set; `refused` counts what it was asked
    meanwhile.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.away = threading.Event()
        self.refused = 0
        super().__init__(inner)

    @property
    def inner(self) -> ObjectStore:
        if self.away.is_set():
            self.refused += 1
            raise StoreUnavailable("the store does not answer")
        return self._reached

    @inner.setter
    def inner(self, inner: ObjectStore) -> None:
        self._reached = inner

    def describe(self) -> str:
        return self._reached.describe()


def test_an_applier_outlives_a_store_that_is_away_for_longer_than_its_lease(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "AWAY_SECONDS", 0.05)
    pipeline.begin(SCHEMA, row(1))
    there, store = pipeline.store, AwayStore(pipeline.store)
    pipeline.store = store
    with running(pipeline, lease_seconds=LEASE_SECONDS) as work:
        work.until(lambda: any(there.list(keys.APPLY_COMPLETE)), what="the snapshot is applied")
        store.away.set()
        work.until(lambda: store.refused > 50, what="it was asked in vain for longer than the lease lasts")
        pipeline.change(Change("u", row(1, 7)))
        store.away.clear()
        work.until(lambda: pipeline.keys(column="v") == [7], what="the change is applied")
        claims = len(list(there.list(f"{keys.APPLY}lease/")))
        assert claims >= 2, "the lease did not lapse, so that this test proves nothing"  # on a busy machine, twice
