"""Every edge between two stages fails, with each kind of error, while nothing, more work, or a stop waits behind it.

Whatever fails, a healthy restart has each committed transaction exactly once, nothing was acknowledged before it was durable, and nothing hangs.
"""

import os
from collections.abc import Iterator

import pytest

from deploy.local.postgres import PostgresServer
from service import faults
from tests.chaos import stages
from tests.chaos.stages import COPY_EDGES, EDGES, Edge, Situation, Stages
from tests.support.sources import fresh_database

ERRORS = ("SourceUnavailable", "StoreRefused", "MemoryError")
"""One that is tried again, one that a human must see to, one that is not ours."""
STORE_ERRORS = ("StoreUnavailable", "StoreRefused", "OSError")
MANIFEST_ERRORS = ("WriterFenced", "StoreRefused", "MemoryError")
"""The log itself tries again what may pass, so nothing that may pass ever leaves it."""


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shared"]:
    created = Shared(postgres, tmp_path_factory)
    yield created
    created.close()


class Shared:
    """One pipeline for all cases; a case that ends badly costs the next one a new pipeline, so that each failure is its own."""

    def __init__(self, server: PostgresServer, folders: pytest.TempPathFactory) -> None:
        self._server = server
        self._folders = folders
        self._stages: Stages | None = None

    def stages(self) -> Stages:
        if self._stages is not None and not self._stages.sound:
            self.close()
        if self._stages is None:
            self._context = fresh_database(self._server)
            self._stages = Stages(self._context.__enter__(), self._folders.mktemp("stages"))
        return self._stages

    def close(self) -> None:
        if self._stages is not None:
            self._stages.close()
            self._stages = None
            self._context.__exit__(None, None, None)


FULL = os.environ.get("CHAOS") == "full"
"""Every error in every situation, as `make chaos` does; otherwise each edge in each situation, with both kinds of error where work is queued."""


def _errors(point: str) -> tuple[str, ...]:
    if point == "catalog.asked":
        return ("SourceUnavailable",)
    if point.startswith("store."):
        return STORE_ERRORS
    return MANIFEST_ERRORS if point.startswith("manifest.") else ERRORS


def _chosen(errors: tuple[str, ...]) -> list[tuple[str, Situation]]:
    quick = {
        (errors[-1], Situation.IDLE),
        (errors[0], Situation.QUEUED),
        (errors[len(errors) // 2], Situation.QUEUED),
        (errors[len(errors) // 2], Situation.DRAINING),
    }
    return [(error, situation) for error in errors for situation in Situation if FULL or (error, situation) in quick]


def _named(*parts: str) -> str:
    return "-".join(part.replace(" ", "_") for part in parts)


CASES = [
    pytest.param(edge, error, situation, id=_named(edge.point, error, situation.value)) for edge in EDGES for error, situation in _chosen(_errors(edge.point))
]
COPY_CASES = [pytest.param(point, error, situation, id=_named(point, error, situation.value)) for point in COPY_EDGES for error, situation in _chosen(ERRORS)]


@pytest.mark.parametrize(("edge", "error", "situation"), CASES)
def test_a_stage_that_fails_loses_and_doubles_nothing_whatever_waits_behind_it(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, edge: Edge, error: str, situation: Situation
) -> None:
    stages.hurried(monkeypatch)
    try:
        shared.stages().case(edge, error, situation)
    finally:
        faults.arm("")


@pytest.mark.parametrize(("point", "error", "situation"), COPY_CASES)
def test_a_copy_that_fails_at_any_step_is_taken_again_and_joins_the_stream_without_gap_or_overlap(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, point: str, error: str, situation: Situation
) -> None:
    stages.hurried(monkeypatch)
    try:
        shared.stages().copy_case(point, error, situation)
    finally:
        faults.arm("")
