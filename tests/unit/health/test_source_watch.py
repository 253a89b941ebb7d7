"""One question serves page and metrics, and a loss is believed only of an answer between two looks at the manifest."""

import pytest

from sluice.errors import ServiceError, SourceUnavailable
from sluice.health import source_watch
from sluice.health.continuity import lost_between
from sluice.health.source_watch import SourceWatch
from sluice.manifest.values import PipelineState
from sluice.source.sessions import SourceOptions
from sluice.source.slot_probe import SlotProbeFacts
from tests.support.manifests import opened
from tests.support.source_facts import server, slot

OPENED = opened(system_identifier="7", database="d", slot="s", publication="s", start_lsn=100)


class Probe:
    """A server whose write position grows by 100 with each question."""

    def __init__(self, _options: SourceOptions) -> None:
        self.asked = self.closed = 0
        self.error: ServiceError | None = None

    def ask(self) -> SlotProbeFacts:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return SlotProbeFacts(server(self.asked * 100), None, None, None, None)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> SourceWatch:
    monkeypatch.setattr(source_watch, "SlotProbe", Probe)
    return SourceWatch(
        SourceOptions(dsn="host=/tmp", slot="s", publication="s", application_name="a"), clock=lambda: now[0]
    )


def probe(watch: SourceWatch) -> Probe:
    found = watch._probe
    assert isinstance(found, Probe)
    return found


def test_an_answer_is_shared_while_it_is_young_enough(watch: SourceWatch, now: list[float]) -> None:
    first = watch.ask()
    now[0] += 15
    assert watch.ask(within_seconds=20) is first
    assert watch.newest is first
    assert watch.ask(within_seconds=10) is not first
    assert probe(watch).asked == 2
    assert watch.history.seconds_behind(100, now=1020) == 5.0


def test_no_answer_is_an_answer_and_leaves_the_history_as_it_is(watch: SourceWatch, now: list[float]) -> None:
    watch.ask()
    probe(watch).error = SourceUnavailable("away")
    now[0] += 15
    seen = watch.ask()
    assert (seen.facts, seen.error, seen.at) == (None, probe(watch).error, 1015.0)
    assert watch.history.complete_at(100) == 1000.0


def test_the_connection_is_kept_only_when_that_was_asked_for(watch: SourceWatch) -> None:
    watch.ask()
    assert probe(watch).closed == 1
    watch.keep_open()
    watch.ask()
    assert probe(watch).closed == 1


def test_a_slot_and_a_server_that_are_read_while_ingest_goes_on_are_no_loss() -> None:
    def at(lsn: int) -> PipelineState:
        return PipelineState(opened=OPENED, through_lsn=lsn)

    read = (server(120), slot(restart=110, safe=None))
    assert lost_between(at(100), at(130), *read) is None, "ahead of the first look, behind the second"
    assert str(lost_between(at(100), at(105), *read)).startswith("AHEAD")
    assert str(lost_between(at(125), at(130), *read)).startswith("DIVERGED")
    assert str(lost_between(at(100), at(100), server(120), None)).startswith("MISSING")
    assert lost_between(PipelineState(), at(100), *read) is None, "it was new a moment ago"
