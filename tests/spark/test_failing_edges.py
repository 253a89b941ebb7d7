"""Every hand-over of the applier fails, with each kind of error, while nothing, later windows, or a
stop wait behind it.

From the manifest to a window, to its bytes, its fold, its commit, the look at the commit, the
report and the boundary; and the same for a snapshot.
Whatever fails, the lake then has each change exactly once, and no report on the way called a table
live that was not as it said.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice_spark import applier
from tests.chaos.stages import Situation
from tests.spark.edges import EDGES, Edge, Edges
from tests.support.extent import FULL

WINDOW_ERRORS = ("ApplyError", "MemoryError", "UnsupportedChange", "StoreUnavailable", "WriterFenced", "")
"""One that is tried again, one that is not ours, one that stops the table, one of the
store, one that ends the process, and a delay.
"""
LOOP_ERRORS = ("StoreUnavailable", "StoreRefused", "MemoryError", "")
"""Every error in every situation at each edge, as `make chaos` does; otherwise QUICK."""
QUICK = {
    "apply.commit.before-ApplyError-queued_behind",
    "apply.commit.after-UnsupportedChange-queued_behind",
    "apply.commit.after-ApplyError-draining",
    "apply.log.before-StoreRefused-queued_behind",
    "apply.complete.after-StoreUnavailable-queued_behind",
    "snapshot.apply.commit.before-ApplyError-queued_behind",
}
CASES_OF_ONE = 25
"""A lake table of more commits is slow to read and tests nothing more."""


class Shared:
    """One pipeline for many cases; a failed case gives the next one a new pipeline, so
    that each failure is its own.
    """

    def __init__(self, spark: SparkSession, folders: pytest.TempPathFactory) -> None:
        self._spark = spark
        self._folders = folders
        self._edges: Edges | None = None

    def edges(self) -> Edges:
        if self._edges is None or not self._edges.sound or self._edges.cases >= CASES_OF_ONE:
            self._edges = Edges(self._spark, self._folders.mktemp("edges"))
        return self._edges


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(spark, tmp_path_factory)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses as short as a test may have them."""
    monkeypatch.setattr(applier, "AWAY_SECONDS", 0.05)
    yield
    faults.arm("")


def _name(edge: Edge, error: str, situation: Situation) -> str:
    return "-".join(
        (f"{'snapshot.' if edge.in_snapshot else ''}{edge.point}", error or "delay", situation.value.replace(" ", "_"))
    )


CASES = {
    _name(edge, error, situation): (edge, error, situation)
    for edge in EDGES
    for error in (LOOP_ERRORS if edge.on_loop else WINDOW_ERRORS)
    for situation in Situation
}
assert CASES.keys() >= QUICK


@pytest.mark.parametrize(
    ("edge", "error", "situation"),
    [pytest.param(*case, id=name) for name, case in CASES.items() if FULL or name in QUICK],
)
def test_an_applier_that_fails_anywhere_applies_each_change_once_and_reports_no_false_live(
    shared: Shared, edge: Edge, error: str, situation: Situation
) -> None:
    shared.edges().case(edge, error, situation)
