"""A sensor of Dagster that asks for a run when the lake has a new boundary. Needs `dagster`, which it imports when it
is used.

    from sluice_lake import Lake
    from sluice_lake.dagster import boundary_sensor

    orders_sensor = boundary_sensor(Lake("s3://bucket/lake"), name="orders", job=orders_job)

The cursor is kept by Dagster, with the sensor. A run reads all tables at its own boundary, whenever it begins:
`Lake(...).as_of(lsn=context.run.tags["sluice/lsn"])`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from sluice_lake.boundary import Boundary
from sluice_lake.errors import LibraryMissing
from sluice_lake.following import Following, cursor_of, described
from sluice_lake.lake import Lake
from sluice_lake.positions import show


def boundary_sensor(
    lake: Lake,
    *,
    name: str,
    every: int = 1,
    each: bool = False,
    run_config: Callable[[Boundary], Mapping[str, Any]] | None = None,
    minimum_interval_seconds: int = 30,
    **options: Any,
) -> Any:
    """A `SensorDefinition` called `name`. Each look asks for a run at the newest boundary if at least `every` of them
    came since the last run; with `each`, for one at every boundary (or `every` so many) that came since.

    The run has the tags `sluice/lsn`, `sluice/time`, `sluice/boundary`, `sluice/pipeline` and `sluice/versions` (JSON:
    the Delta version of each table), and the configuration that `run_config` makes. Its key is the boundary, so that
    Dagster never begins two runs for one. `options` are those of `dagster.SensorDefinition`, such as `job`, `target` or
    `default_status`. Raises LibraryMissing.
    """
    try:
        import dagster
    except ImportError as error:
        raise LibraryMissing("a sensor needs dagster", hint="pip install dagster") from error
    following = Following(every, each)

    def evaluate(context: Any) -> Any:
        due = following.due(lake, context.cursor)
        if not due:
            return dagster.SkipReason(f"the lake has no {'' if every == 1 else f'{every} '}new boundaries")
        requests = [
            dagster.RunRequest(
                # Numbers come again after an older copy of lake and spool was restored, but not at the same position.
                run_key=f"{one.pipeline}/{one.manifest}/{one.number}/{show(one.lsn)}",
                tags=_tags(one),
                run_config=run_config(one) if run_config is not None else None,
            )
            for one in due
        ]
        return dagster.SensorResult(run_requests=requests, cursor=cursor_of(due[-1]))

    return dagster.SensorDefinition(
        name=name, evaluation_fn=evaluate, minimum_interval_seconds=minimum_interval_seconds, **options
    )


def _tags(boundary: Boundary) -> dict[str, str]:
    said = described(boundary)
    return {
        "sluice/pipeline": said["pipeline"],
        "sluice/boundary": str(said["number"]),
        "sluice/lsn": said["lsn"],
        "sluice/time": said["time"],
        "sluice/versions": json.dumps(said["versions"], sort_keys=True),
    }
