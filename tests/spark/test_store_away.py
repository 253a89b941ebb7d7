"""An object store that does not answer for longer than the applier's lease: the applier waits,
takes its lease again and goes on, on its own.
"""

import threading
from collections.abc import Iterator

import pytest

from sluice.contract import keys
from sluice.errors import ServiceError, StoreUnavailable
from sluice.store.base import ObjectStore
from sluice_spark import applier
from sluice_spark.applier import Applier
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA
from tests.support.pipeline import wait_until

LEASE_SECONDS = 1.0


class AwayStore(ObjectStore):
    """A store that answers nothing while `away` is set; `refused` counts what it was asked
    meanwhile.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.away = threading.Event()
        self.refused = 0

    def _reached(self) -> ObjectStore:
        if self.away.is_set():
            self.refused += 1
            raise StoreUnavailable("the store does not answer")
        return self._inner

    def get(self, key: str) -> bytes:
        return self._reached().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._reached().get_range(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._reached().put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._reached().create(key, data)

    def size(self, key: str) -> int | None:
        return self._reached().size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._reached().list(prefix, after=after)

    def delete(self, key: str) -> None:
        self._reached().delete(key)

    def describe(self) -> str:
        return self._inner.describe()


def test_an_applier_outlives_a_store_that_is_away_for_longer_than_its_lease(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "AWAY_SECONDS", 0.05)
    row = {"id": 1, "v": 0, "big": "B", "at": None}
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([row], SCHEMA)
    pipeline.manifest.table(SCHEMA, state="live", new=False)
    store, stop, ended = AwayStore(pipeline.store), threading.Event(), []
    running = Applier(pipeline.options(once=False, lease_seconds=LEASE_SECONDS), store, pipeline.spark, stop=stop)

    def run() -> None:
        try:
            running.run()
        except ServiceError as error:
            ended.append(type(error).__name__)

    def claims() -> int:
        return len(list(pipeline.store.list(f"{keys.APPLY}lease/")))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: any(pipeline.store.list(keys.APPLY_COMPLETE)), what="the snapshot is applied")
        store.away.set()
        wait_until(lambda: store.refused > 50, what="it was asked in vain for longer than the lease lasts")
        pipeline.manifest.transaction([Change("u", {**row, "v": 7})], SCHEMA)
        store.away.clear()
        wait_until(
            lambda: bool(ended) or [found["v"] for found in pipeline.rows()] == [7], what="the change is applied"
        )
        assert ended == []
        assert claims() >= 2, "the lease did not lapse, so that this test proves nothing"  # on a busy machine, twice
    finally:
        stop.set()
        thread.join(60)
    assert ended == []
