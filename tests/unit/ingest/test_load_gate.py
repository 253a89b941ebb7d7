"""What counts as a loaded source: seconds of a standby that stands still, limits that are passed and kept
again, and what cannot be seen.
"""

from sluice.ingest.snapshot.load_gate import LoadLimits, Measure, StandbyLag, above, measures
from sluice.source.server_load import SourceLoad, Standby

ALL = LoadLimits(stream_lag=1 << 20, replica_lag_s=10.0, active_sessions=50)


def load(wal_end: int, *standbys: Standby) -> SourceLoad:
    return SourceLoad(wal_end_lsn=wal_end, stream_lag=0, standbys=standbys, active_sessions=0)


def test_a_standby_that_stands_still_is_further_behind_with_every_second() -> None:
    lag = StandbyLag()
    stuck = Standby(7, "one", 100, 0.2)
    seconds = [lag.slowest(load(200 + at, stuck), now=at)[0] for at in (0, 5, 30)]
    assert seconds == [0.2, 5.0, 30.0]


def test_a_standby_that_follows_is_as_far_behind_as_the_server_says() -> None:
    lag = StandbyLag()
    seconds = [lag.slowest(load(200 + at, Standby(7, "one", 199 + at, 0.3)), now=at)[0] for at in (0, 60, 120)]
    assert seconds == [0.3, 0.3, 0.3]
    assert lag.slowest(load(500, Standby(7, "one", 500, 9.0)), now=200.0) == (0.0, None), "it has replayed everything"


def test_the_slowest_standby_counts_and_is_named() -> None:
    seen = load(200, Standby(7, "near", 150, 0.3), Standby(8, "far", 100, 14.0))
    (found,) = measures(seen, LoadLimits(replica_lag_s=10.0), StandbyLag(), now=0.0)
    assert (found.value, found.words) == (14.0, "the lag of standby far, 14 s, is above 10 s")


def test_what_cannot_be_seen_counts_as_above_its_limit_and_says_what_is_missing() -> None:
    hidden = SourceLoad(wal_end_lsn=100, stream_lag=None, standbys=None, active_sessions=None)
    found = above(list(measures(hidden, ALL, StandbyLag(), now=0.0)), frozenset())
    assert [one.signal for one in found] == ["stream_lag", "replica_lag", "active_sessions"]
    assert all("GRANT pg_read_all_stats" in one.words for one in found[1:])


def test_a_limit_that_was_passed_is_kept_again_only_well_below_it() -> None:
    def is_above(value: float, *before: str) -> bool:
        return bool(above([Measure("active_sessions", value, 50, "")], frozenset(before)))

    assert [is_above(50), is_above(51)] == [False, True]
    assert [is_above(41, "active_sessions"), is_above(40, "active_sessions")] == [True, False]
    assert not is_above(50, "replica_lag"), "another limit that was passed changes nothing"
