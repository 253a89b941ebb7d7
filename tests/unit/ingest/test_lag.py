"""For how long a stage has been behind, by what is not durable and by what makes it wait."""

from sluice.ingest.commit.unflushed import Unflushed
from sluice.ingest.receive.backpressure import Backpressure


def test_what_is_decoded_and_all_durable_is_complete_beyond_the_last_entry() -> None:
    unflushed = Unflushed(100)
    assert unflushed.state(100) == (100, None)
    unflushed.decoded(500, [], pending=False, now_us=1)
    assert unflushed.state(100) == (500, None)


def test_the_oldest_commit_counts_until_its_unit_is_durable() -> None:
    unflushed = Unflushed(100)
    unflushed.decoded(200, [7, 8], pending=True, now_us=99)
    unflushed.decoded(300, [9], pending=True, now_us=99)
    assert unflushed.state(100) == (100, 7)
    unflushed.published(300)
    unflushed.decoded(400, [10], pending=True, now_us=99)
    assert unflushed.state(100) == (100, 7)
    assert unflushed.state(300) == (300, 10)
    unflushed.published(400)
    assert unflushed.state(400) == (400, None)


def test_a_message_without_a_commit_counts_from_when_it_came() -> None:
    unflushed = Unflushed(100)
    unflushed.decoded(200, [], pending=True, now_us=99)
    assert unflushed.state(100) == (100, 99)


def test_a_long_wait_for_the_next_stage_is_counted_while_it_lasts_and_by_cause() -> None:
    now = [0.0]
    pressure = Backpressure(monotonic=lambda: now[0])
    pressure.account("upload")
    pressure.begin()
    now[0] = 2.0
    pressure.account("decoder")
    assert (pressure.active, pressure.seconds) == (True, {"decoder": 2.0, "upload": 0.0})
    now[0] = 180.0
    pressure.end("upload")
    now[0] = 300.0
    pressure.account("upload")
    assert (pressure.active, pressure.seconds) == (False, {"decoder": 2.0, "upload": 178.0})
