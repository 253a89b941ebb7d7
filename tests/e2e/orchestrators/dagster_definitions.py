"""What a project of Dagster has: a job that reads the lake as of its boundary, and the sensor that asks for it."""

import json
import os
from pathlib import Path

import dagster

from sluice_lake import Lake
from sluice_lake.dagster import boundary_sensor

LAKE, SEEN = os.environ["THE_LAKE"], Path(os.environ["SEEN"])


@dagster.op  # type: ignore[untyped-decorator]
def count_orders(context: dagster.OpExecutionContext) -> None:
    tags = context.run.tags
    now = Lake(LAKE).as_of(lsn=tags["sluice/lsn"])
    rows = now.arrow("orders").num_rows
    version = json.loads(tags["sluice/versions"])["public.orders"]
    with SEEN.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"lsn": tags["sluice/lsn"], "rows": rows, "version": version}) + "\n")


@dagster.job(executor_def=dagster.in_process_executor)  # type: ignore[untyped-decorator]
def orders_job() -> None:
    count_orders()


orders_sensor = boundary_sensor(
    Lake(LAKE),
    name="orders",
    job=orders_job,
    each=os.environ.get("EACH") == "1",
    minimum_interval_seconds=1,
    default_status=dagster.DefaultSensorStatus.RUNNING,
)

definitions = dagster.Definitions(jobs=[orders_job], sensors=[orders_sensor])
