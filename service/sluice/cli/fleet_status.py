"""`status --fleet`: where all pipelines of a folder stand. Works while nothing runs."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sluice.cli import deadline, exits, output, wiring
from sluice.cli.fleet import configurations
from sluice.cli.invocation import Invocation
from sluice.errors import ServiceError, UsageError
from sluice.health.verdict import State, worst

AT_ONCE = 8
_REFUSED: State = "unknown"
_COLUMNS = ("Pipeline", "State", "Tables", "Complete through", "What to know")


def show(invocation: Invocation, folder: str, *, json_wanted: bool) -> int:
    """Prints one row for each configuration; returns the exit code of the worst state. Raises UsageError when there is
    none.
    """
    configs = configurations(folder)
    if not configs:
        raise UsageError(f"{folder} holds no configuration", hint="sluice fleet --help says which files count")
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="look") as pool:
        rows = list(pool.map(lambda config: _row(invocation.with_config(config)), configs))
    state = worst(row["state"] for row in rows)
    if json_wanted:
        output.as_json({"schema_version": 1, "state": state, "pipelines": rows})
    else:
        invocation.console().print(output.table("", _COLUMNS, [_cells(row) for row in rows], right=("Tables",)))
    return exits.HEALTH[state]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    tables = "" if row["tables"] is None else str(row["tables"])
    name = row["pipeline"] or os.path.relpath(row["config"])
    return name, row["state"], tables, row["complete_through_lsn"] or "", " ".join(row["headline"].split())


def _row(invocation: Invocation) -> dict[str, Any]:
    row: dict[str, Any] = {
        "pipeline": None,
        "config": invocation.config,
        "state": _REFUSED,
        "headline": "",
        "problems": [],
        "tables": None,
        "complete_through_lsn": None,
    }
    try:
        settings = invocation.read().settings
        row["pipeline"] = settings.pipeline
        said = deadline.take(wiring.reporter(settings)).to_json()
    except ServiceError as error:
        return row | {"headline": str(error)}
    row |= {name: said[name] for name in ("state", "headline", "problems")}
    return row | {"tables": len(said["tables"]), "complete_through_lsn": said["apply"]["complete_through_lsn"]}
