"""For how long a stage has been behind: proven from what was seen of the server and from what is
not durable.
"""

from sluice.health.source_clock import MOST, SourceClock
from sluice.ingest.commit.unflushed import Unflushed
from sluice.ingest.receive.backpressure import Backpressure


def clock(*looks: tuple[float, int]) -> SourceClock:
    made = SourceClock()
    for at, lsn in looks:
        made.note(at, lsn)
    return made


def test_a_source_where_nothing_is_written_is_never_behind_and_complete_until_now() -> None:
    idle = clock((0, 100), (15, 100), (3600, 100))
    assert idle.behind_since(100) is None
    assert idle.complete_at(100) == 3600


def test_behind_counts_from_when_the_server_was_first_seen_further() -> None:
    seen = clock((0, 100), (15, 200), (30, 200), (45, 300))
    assert seen.behind_since(300) is None
    assert seen.behind_since(200) == 45
    assert seen.behind_since(150) == 15
    assert (seen.complete_at(299), seen.complete_at(150), seen.complete_at(99)) == (30, 0, None)


def test_nothing_is_claimed_before_the_first_look() -> None:
    assert (SourceClock().behind_since(5), SourceClock().complete_at(5)) == (None, None)


def test_another_server_begins_a_new_history() -> None:
    seen = clock((0, 1000), (15, 50))
    assert seen.complete_at(1000) == 15
    assert seen.behind_since(40) == 15


def test_a_long_history_loses_resolution_and_no_truth() -> None:
    seen = clock(*((float(look), look) for look in range(MOST + 10)))
    assert seen.behind_since(-1) == 0.0
    since = seen.behind_since(1001)
    assert since is not None
    assert 1001 < since <= 1004
    assert seen.behind_since(MOST + 9) is None


def test_what_is_decoded_and_all_durable_is_complete_beyond_the_last_entry() -> None:
    """WAL of others moves the position and leaves nothing to store."""
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


def test_a_long_wait_for_room_is_counted_while_it_lasts_and_by_cause() -> None:
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
