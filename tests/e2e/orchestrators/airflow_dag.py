"""What a project of Airflow has: an asset that is watched, and a DAG that runs for each of its events."""

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from sluice_lake import Lake
from sluice_lake.airflow import BoundaryTrigger

LAKE, SEEN = os.environ["THE_LAKE"], Path(os.environ["SEEN"])

trigger = BoundaryTrigger(LAKE, poll_seconds=0.5, each=os.environ.get("EACH") == "1")
orders = Asset("orders", watchers=[AssetWatcher(name="boundary", trigger=trigger)])

with DAG("orders", schedule=[orders], catchup=False, is_paused_upon_creation=False):

    @task  # type: ignore[untyped-decorator]
    def count_orders(triggering_asset_events: Any = None) -> None:
        for events in triggering_asset_events.values():
            for event in events:
                said = event.extra["payload"]
                rows = Lake(LAKE).as_of(lsn=said["lsn"]).arrow("orders").num_rows
                line = {"lsn": said["lsn"], "rows": rows, "version": said["versions"]["public.orders"]}
                with SEEN.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")

    count_orders()
