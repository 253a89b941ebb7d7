"""GET /wait: who asks for a position is answered when it can be read, or learns that it cannot yet."""

import json
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from sluice.health import readable
from sluice.health.readable import Readable
from tests.support.answers import ask, serving


@pytest.fixture
def waiting() -> Iterator[tuple[Readable, str]]:
    found = Readable()
    with serving(component="apply", wait=found.wait) as (address, _):
        yield found, f"http://{address}/wait"
        found.close()


def _ask(address: str) -> tuple[int, dict[str, object]]:
    place = urlsplit(address)
    status, said = ask(place.netloc, f"{place.path}?{place.query}")
    return status, json.loads(said)


def test_a_position_is_readable_from_its_boundary_on_and_not_before(waiting: tuple[Readable, str]) -> None:
    found, address = waiting
    assert _ask(f"{address}?lsn=0/A&timeout=0") == (
        503,
        {"schema_version": 1, "lsn": "0/A", "reached": False, "boundary_lsn": "0/0", "reason": "not yet"},
    )
    found.reached(9)
    assert _ask(f"{address}?lsn=0/A&timeout=0.05")[0] == 503
    threading.Timer(0.2, lambda: found.reached(12)).start()
    code, said = _ask(f"{address}?lsn=0/A&timeout=30")
    assert (code, said["reached"], said["boundary_lsn"]) == (200, True, "0/C")


def test_a_log_that_begins_again_takes_back_what_was_readable(waiting: tuple[Readable, str]) -> None:
    found, address = waiting
    found.reached(12)
    found.reached(3)
    assert _ask(f"{address}?lsn=0/A&timeout=0")[0] == 503


NO_TIMES = [f"lsn=0/A&timeout={seconds}" for seconds in ("x", "61", "nan", "inf", "-1")]


@pytest.mark.parametrize("query", ["", "lsn=ten", "lsn=0/A&lsn=0/B", "lsn=0/0&table=public.orders", *NO_TIMES])
def test_a_question_of_another_form_is_refused(waiting: tuple[Readable, str], query: str) -> None:
    code, said = _ask(f"{waiting[1]}?{query}")
    assert (code, list(said)) == (400, ["error"])


def test_who_waits_is_answered_that_the_applier_ends(waiting: tuple[Readable, str]) -> None:
    found, address = waiting
    threading.Timer(0.2, found.close).start()
    began = time.monotonic()
    assert _ask(f"{address}?lsn=0/A&timeout=60")[1]["reason"] == "the applier ends"
    assert time.monotonic() - began < 30


def test_no_more_wait_than_there_are_threads(waiting: tuple[Readable, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "MOST_WAITING", 0)
    assert _ask(f"{waiting[1]}?lsn=0/A&timeout=60")[1]["reason"] == "too many requests wait already"
