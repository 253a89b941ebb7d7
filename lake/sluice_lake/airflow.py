"""A trigger of Airflow 3 that fires when the lake has a new boundary, for an asset watcher or a deferred task. This
module imports `airflow`.

    from airflow.sdk import Asset, AssetWatcher
    from sluice_lake.airflow import BoundaryTrigger

    orders = Asset("orders", watchers=[AssetWatcher(name="boundary", trigger=BoundaryTrigger("s3://bucket/lake"))])

The payload of an event says the position (`lsn`), which `Lake(...).as_of(lsn=...)` takes, the time, and the Delta
version of each table. The cursor is kept by Airflow, in the state of the asset (from Airflow 3.3 on); where there is
none, a triggerer that starts again begins with the newest boundary.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sluice_lake.boundary import Boundary
from sluice_lake.errors import LakeUnavailable, LibraryMissing
from sluice_lake.following import Following, cursor_of, described
from sluice_lake.lake import Lake

try:
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
except ImportError as missing:
    raise LibraryMissing("a trigger needs Airflow 3", hint="pip install apache-airflow") from missing

CURSOR = "sluice_boundary"
"""By which the state of the asset has the cursor."""


class BoundaryTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires at the newest boundary of the lake at `lake_uri` if at least `every` boundaries came since it last fired;
    with `each`, at every boundary (or `every` so many) that came since. `after` is the cursor to begin with.

    An event is repeated if the triggerer is killed between the event and its cursor; none is left out. Airflow stores
    the arguments: let credentials come from the environment, not from `storage_options`.
    """

    def __init__(
        self,
        lake_uri: str,
        *,
        pipeline: str = "",
        storage_options: Mapping[str, str] | None = None,
        every: int = 1,
        each: bool = False,
        poll_seconds: float = 5.0,
        after: str = "",
    ) -> None:
        super().__init__()
        self.lake_uri, self.pipeline, self.storage_options = lake_uri, pipeline, dict(storage_options or {})
        self.every, self.each, self.poll_seconds, self.after = every, each, poll_seconds, after
        self._following = Following(every, each)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """As Airflow makes it again, in whichever process."""
        return (
            "sluice_lake.airflow.BoundaryTrigger",
            {
                "lake_uri": self.lake_uri,
                "pipeline": self.pipeline,
                "storage_options": self.storage_options,
                "every": self.every,
                "each": self.each,
                "poll_seconds": self.poll_seconds,
                "after": self.after,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event for each boundary that is due, without end. A store that does not answer is asked again."""
        lake = Lake(self.lake_uri, pipeline=self.pipeline, storage_options=self.storage_options)
        state = self._state()
        kept = await state.aget(CURSOR) if state is not None else None
        cursor = str(kept) if kept else self.after
        while True:
            for boundary in await self._due(lake, cursor):
                yield TriggerEvent(described(boundary))
                cursor = cursor_of(boundary)
                if state is not None:
                    await state.aset(CURSOR, cursor)
            await asyncio.sleep(self.poll_seconds)

    async def _due(self, lake: Lake, cursor: str) -> list[Boundary]:
        try:
            return await asyncio.to_thread(self._following.due, lake, cursor)
        except LakeUnavailable as error:
            self.log.warning("the lake cannot be read, trying again: %s", error)
            return []

    def _state(self) -> Any:
        """What Airflow keeps with the asset, if that is one alone; None for a deferred task, and before Airflow 3.3."""
        stores = getattr(self, "asset_state_store", None)
        return stores if stores is not None and getattr(stores, "_total", 1) == 1 else None
