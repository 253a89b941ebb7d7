"""Every edge between two stages fails, with each kind of error, while nothing, more work, or a stop
waits behind it.

Whatever fails, a healthy restart has each committed transaction exactly once, nothing was
acknowledged before it was durable, and nothing hangs.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.chaos.reused import Reused
from tests.chaos.stages import EDGES, SNAPSHOT_EDGES, Edge, Situation, Stages, hurried
from tests.support.extent import FULL
from tests.support.sources import fresh_database
from tools.local.postgres import PostgresServer

ERRORS = ("SourceUnavailable", "StoreRefused", "MemoryError")
"""One that is tried again, one that a human must see to, one that is not ours."""
STORE_ERRORS = ("StoreUnavailable", "StoreRefused", "OSError")
MANIFEST_ERRORS = ("WriterFenced", "StoreRefused", "MemoryError")
"""The log itself tries again what may pass, so nothing that may pass ever leaves it."""


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reused[Stages]]:
    @contextmanager
    def joined() -> Iterator[Stages]:
        with (
            fresh_database(postgres) as database,
            closing(Stages(database, tmp_path_factory.mktemp("stages"))) as created,
        ):
            yield created

    kept = Reused(joined)
    yield kept
    kept.close()


@pytest.fixture
def stages(shared: Reused[Stages], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stages]:
    """One pipeline for all cases; a case that ends badly costs the next one a new pipeline."""
    hurried(monkeypatch)
    with shared.lent(request) as lent:
        yield lent


QUICK = {
    "batch.received",
    "catalog.asked",
    "unit.submit.before",
    "segment.put.before",
    "commit.before",
    "store.create.before",
    "manifest.append.after",
    "receipt.before",
}
SNAPSHOT_QUICK = {"snapshot.read", "snapshot.chunk.after", "snapshot.final.before"}
"""`make chaos` fails every edge with every error in every situation. Otherwise it is these, before and behind each
thing that is made durable or acknowledged, once: with work queued behind them, idle or draining, by turns.
"""


def _errors(point: str) -> tuple[str, ...]:
    if point == "catalog.asked":
        return ("SourceUnavailable",)
    if point.startswith("store."):
        return STORE_ERRORS
    return MANIFEST_ERRORS if point.startswith("manifest.") else ERRORS


def _chosen(place: int, errors: tuple[str, ...], *, quickly: bool, serial: bool = False) -> list[tuple[str, Situation]]:
    """Neighbouring edges have different errors, so that each kind of error meets each situation
    somewhere. A `serial` one has one that ends the process as well: only that shows whether the
    stage took more work, or whether a drain reported it.
    """
    turns = (Situation.QUEUED, Situation.IDLE, Situation.QUEUED, Situation.DRAINING)
    quick: set[tuple[str, Situation]] = {(errors[place % len(errors)], turns[place % len(turns)])} if quickly else set()
    if serial:
        quick.add(("StoreRefused", Situation.QUEUED if place % 2 else Situation.DRAINING))
    return [(error, situation) for error in errors for situation in Situation if FULL or (error, situation) in quick]


def _named(*parts: str) -> str:
    return "-".join(part.replace(" ", "_") for part in parts)


CASES = [
    pytest.param(edge, error, situation, id=_named(edge.point, error, situation.value))
    for place, edge in enumerate(EDGES)
    for error, situation in _chosen(place, _errors(edge.point), quickly=edge.point in QUICK, serial=edge.serial)
]
SNAPSHOT_CASES = [
    pytest.param(point, error, situation, id=_named(point, error, situation.value))
    for place, point in enumerate(SNAPSHOT_EDGES)
    for error, situation in _chosen(place, ERRORS, quickly=point in SNAPSHOT_QUICK)
]


@pytest.mark.parametrize(("edge", "error", "situation"), CASES)
def test_a_stage_that_fails_loses_and_doubles_nothing_whatever_waits_behind_it(
    stages: Stages, edge: Edge, error: str, situation: Situation
) -> None:
    stages.case(edge, error, situation)


@pytest.mark.parametrize(("point", "error", "situation"), SNAPSHOT_CASES)
def test_a_snapshot_that_fails_at_any_step_is_taken_again_and_joins_without_gap_or_overlap(
    stages: Stages, point: str, error: str, situation: Situation
) -> None:
    stages.snapshot_case(point, error, situation)
