"""What `sluice tables`, the applier's records and its boundaries call complete has every change of the source
up to there, those that only the catalog shows among them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from sluice import lsn
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from tests.support.background import beside
from tests.support.extent import slow
from tests.support.pipeline import complete_through, wait_until
from tests.support.quiet_changes import KINDS, Kind, QuietChanges
from tests.support.sources import Database

Claim = tuple[str, int, str, int]
"""A table, through where it was called complete, and the path and version of which that was said."""
EXCHANGED = ("x", "y")


def _claims(quiet: QuietChanges) -> Iterator[Claim]:
    own = quiet.pipeline.own_spool
    for path in sorted((own / keys.APPLY_LOG).glob("*.json"))[-1:]:
        for table in AppliedLog.decode(path.read_bytes()).tables.values():
            if table.state == "live":
                yield table.table_name, table.complete_through_lsn, table.path, table.delta_version
    for path in sorted((own / keys.APPLY_COMPLETE).glob("*.json"))[-1:]:
        complete = Complete.decode(path.read_bytes())
        for name, version in complete.versions.items():
            table_name = name.partition(".")[2]
            if table_name not in EXCHANGED:  # a boundary does not say which of the two had the name
                yield table_name, complete.lsn, f"public/{table_name}", version


def _below(uri: str) -> str:
    """The path below the lake."""
    return "/".join(uri.split("/")[-2:])


def _shown(quiet: QuietChanges) -> Iterator[Claim]:
    for table in quiet.pipeline.tables():
        if table["state"] == "live":
            through = lsn.parse(table["complete_through_lsn"])
            yield table["table"], through, _below(table["path"]), table["delta_version"]


@contextmanager
def _watched(quiet: QuietChanges) -> Iterator[set[Claim]]:
    """Everything that was claimed until the block ends, by anyone who looked."""
    found: set[Claim] = set()

    def look(ended: threading.Event) -> None:
        while not ended.wait(0.05):
            found.update(_claims(quiet))

    with beside(look):
        yield found


def _reached(quiet: QuietChanges, claims: list[Claim], kind: Kind) -> list[Claim]:
    """What was claimed of the table of `kind` at or behind its change."""
    return [claim for claim in claims if claim[0] == kind.table and claim[1] >= quiet.changed[kind.table]]


def _rows(quiet: QuietChanges, path: str, version: int) -> list[dict[str, Any]]:
    lake = DeltaTable(str(quiet.pipeline.directory / "lake" / path), version=version)
    return pa.table(lake.scan()).to_pylist()  # type: ignore[no-any-return]


@slow
def test_no_position_is_called_complete_behind_a_change_that_the_version_lacks(
    database: Database, tmp_path: Path
) -> None:
    quiet = QuietChanges(database, tmp_path)
    with quiet.pipeline.start("run") as ingest, quiet.pipeline.start("apply") as applier, quiet.noise():
        both = (ingest, applier)
        wait_until(quiet.is_settled, what="all tables are live", processes=both)
        wait_until(lambda: complete_through(quiet.pipeline) > 0, what="the lake is there", processes=both)
        with _watched(quiet) as claims:
            quiet.change_all()
            claims.update(_shown(quiet))
            # A boundary leaves out the tables that are read again.
            wait_until(
                lambda: all(_reached(quiet, list(claims), kind) for kind in KINDS),
                what="every table was called complete",
                processes=both,
            )
            claims.update(_shown(quiet))
    for kind in KINDS:
        for _, through, path, version in _reached(quiet, list(claims), kind):
            assert kind.shown(_rows(quiet, path, version)), f"{kind.table} at version {version}, {lsn.show(through)}"
