"""Which applier may commit: one that was replaced may not, however many came later and however long it slept."""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from sluice.contract import keys
from sluice.contract.lease import Holder, Process, Sign
from sluice.errors import FormatTooNew, ManifestCorrupt, StoreRefused, StoreUnavailable, WriterFenced
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice_spark.lease import Lease, _started, current_process
from tests.support import commands
from tests.support.stores import EVERYTHING, WatchedStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore(uuid.uuid4().hex)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease(store: ObjectStore, clock: Clock, name: str) -> Lease:
    """An applier on a machine of its own, so that only the lease's age says whether it lives."""
    made = Lease(store, seconds=30, wall=clock, monotonic=clock, wait=clock.wait)
    made.instance = f"{name}/1/{name}"
    made._process = replace(made._process, boot=name)
    return made


def held_by(store: ObjectStore, process: Process) -> Lease:
    """A lease of this host, renewed a moment ago by `process`."""
    holder = Lease(store, seconds=30)
    holder.instance = f"{socket.gethostname()}/{process.pid}/earlier"
    holder._process = process
    holder.acquire()
    return holder


def ended_process() -> Process:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = replace(current_process(), pid=child.pid, started=_started(child.pid))
    child.communicate(b"\n")
    return process


def test_a_lease_of_a_newer_format_is_refused_by_name(store: WatchedStore) -> None:
    held_by(store, ended_process())
    newer = {**json.loads(store.get(keys.APPLY_LEASE)), "format_version": 2}
    store.put(keys.APPLY_LEASE, json.dumps(newer).encode())
    with pytest.raises(FormatTooNew, match="the lease of the applier has format version 2"):
        Lease(store, seconds=30).acquire()
    assert json.loads(store.get(keys.APPLY_LEASE)) == newer


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format_version":1}', b'{"format_version":1,"process":7}'])
def test_a_lease_that_cannot_be_read_is_nobody_s_to_take_and_named(store: WatchedStore, damage: bytes) -> None:
    held_by(store, ended_process())
    store.put(keys.APPLY_LEASE, damage)
    with pytest.raises(ManifestCorrupt, match="the lease of the applier"):
        Lease(store, seconds=30).acquire()


def test_a_lease_whose_holder_ended_here_is_taken_over_at_once(store: WatchedStore) -> None:
    held_by(store, ended_process())
    Lease(store, seconds=30).acquire()


def test_who_cannot_give_the_lease_back_knows_that_it_still_holds_for_its_own_process(store: WatchedStore) -> None:
    """The program that takes this one's place has its number and its start."""
    first = Lease(store, seconds=30)
    first.acquire()
    store.refuses = EVERYTHING
    assert not first.release()
    store.refuses = None
    with pytest.raises(WriterFenced):
        Lease(store, seconds=30).acquire()
    assert first.release()
    Lease(store, seconds=30).acquire()


def test_a_process_number_that_came_again_does_not_keep_a_dead_holder_alive(store: WatchedStore) -> None:
    held_by(store, replace(current_process(), pid=os.getppid(), started="1"))
    Lease(store, seconds=30).acquire()


@pytest.mark.parametrize("elsewhere", [{"machine": "m"}, {"boot": "b"}, {"namespace": "pid:[1]"}])
def test_a_holder_of_the_same_host_name_on_another_machine_or_in_another_container_is_alive(
    store: WatchedStore, elsewhere: dict[str, str]
) -> None:
    held_by(store, replace(ended_process(), **elsewhere))  # type: ignore[arg-type]
    with pytest.raises(WriterFenced, match="another applier owns"):
        Lease(store, seconds=30).acquire()


def from_the_future(store: ObjectStore, clock: Clock) -> Lease:
    """A lease that an applier with a clock an hour ahead renewed a moment ago."""
    ahead = Lease(store, seconds=30, wall=lambda: clock() + 3600, monotonic=clock)
    ahead._process = replace(ahead._process, boot="ahead")
    ahead.acquire()
    return ahead


def test_a_lease_of_a_clock_that_was_ahead_is_taken_over_after_its_duration_without_a_change(
    store: WatchedStore, clock: Clock
) -> None:
    ahead = from_the_future(store, clock)
    taker = lease(store, clock, "taker")
    taker.acquire()
    assert 1030 <= clock.now <= 1032
    with pytest.raises(WriterFenced):
        ahead.check()
    taker.check()


def test_a_lease_of_a_clock_that_is_ahead_is_not_taken_while_it_is_renewed(store: WatchedStore, clock: Clock) -> None:
    ahead = from_the_future(store, clock)
    taker = lease(store, clock, "taker")

    def renewed_meanwhile(seconds: float) -> bool:
        if clock.wait(seconds) or clock.now < 1010:
            return False
        ahead.renew()
        return False

    taker._wait = renewed_meanwhile
    with pytest.raises(WriterFenced, match="another applier owns"):
        taker.acquire()
    assert clock.now < 1012
    ahead.check()


def test_a_taker_whose_clock_is_ahead_does_not_take_the_lease_of_a_living_holder() -> None:
    name, theirs, ours = uuid.uuid4().hex, Clock(), Clock()
    owner = lease(MemoryStore(name), theirs, "owner")
    owner.acquire()
    ours.now += 40

    def renewed_meanwhile(seconds: float) -> bool:
        theirs.now += seconds
        ours.now += seconds
        if theirs.now % 10 < 1:
            owner.renew()
        return False

    taker = lease(MemoryStore(name), ours, "taker")
    taker._wait = renewed_meanwhile
    with pytest.raises(WriterFenced, match="another applier owns"):
        taker.acquire()
    owner.check()


def test_a_taker_that_is_stopped_while_it_watches_a_lease_takes_nothing(store: WatchedStore, clock: Clock) -> None:
    ahead = from_the_future(store, clock)
    taker = lease(store, clock, "taker")
    taker._wait = lambda _: True
    with pytest.raises(WriterFenced):
        taker.acquire()
    ahead.check()


def test_a_holder_that_runs_here_is_alive(store: WatchedStore) -> None:
    held_by(store, replace(current_process(), pid=os.getppid(), started=_started(os.getppid())))
    with pytest.raises(WriterFenced, match="another applier owns"):
        Lease(store, seconds=30).acquire()


@pytest.mark.parametrize("takeovers", [1, 2, 3])
def test_an_applier_that_slept_through_any_number_of_takeovers_stays_fenced(
    store: WatchedStore, clock: Clock, takeovers: int
) -> None:
    sleeper = lease(store, clock, "sleeper")
    sleeper.acquire()
    for number in range(takeovers):
        clock.now += 31
        owner = lease(store, clock, f"owner{number}")
        owner.acquire()
    with pytest.raises(WriterFenced):
        sleeper.renew()
    with pytest.raises(WriterFenced):
        sleeper.check()
    owner.check()


def test_a_start_reads_only_the_claims_behind_the_last_renewal_however_many_there_were(
    store: WatchedStore, clock: Clock
) -> None:
    for number in range(50):
        lease(store, clock, f"owner{number}").acquire()
        clock.now += 31
    last = lease(store, clock, "last")
    store.listed = 0
    last.acquire()
    assert (last._number, store.listed) == (51, 0)


def test_a_claim_whose_owner_never_renewed_is_followed_by_the_next_number(store: WatchedStore, clock: Clock) -> None:
    sleeper = lease(store, clock, "sleeper")
    sleeper.acquire()
    clock.now += 31
    died = lease(store, clock, "died")
    died._take(2)
    owner = lease(store, clock, "owner")
    owner.acquire()
    assert owner._number == 3
    for replaced in (sleeper, died):
        with pytest.raises(WriterFenced):
            replaced.check()


def test_a_taker_that_another_one_overtook_between_its_looks_does_not_replace_it(clock: Clock) -> None:
    name = uuid.uuid4().hex
    lease(MemoryStore(name), clock, "ended").acquire()
    clock.now += 31
    owner = lease(MemoryStore(name), clock, "owner")

    class Slow(MemoryStore):
        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            if not owner._number:
                owner.acquire()
            return super().list(prefix, after=after)

    with pytest.raises(WriterFenced, match="another applier owns"):
        lease(Slow(name), clock, "taker").acquire()
    owner.check()


def test_a_lease_that_lapsed_while_the_store_was_away_is_taken_again_before_any_commit(
    store: WatchedStore, clock: Clock
) -> None:
    owner = lease(store, clock, "owner")
    owner.acquire()
    clock.now += 31
    with pytest.raises(StoreUnavailable, match="lapsed"):
        owner.check()
    owner.renew()
    owner.check()


def test_a_taker_that_saw_a_lease_lapse_loses_against_its_owner_or_wins_before(clock: Clock) -> None:
    name = uuid.uuid4().hex
    owner = lease(MemoryStore(name), clock, "owner")
    taker = lease(WatchedStore(name, before_create=owner.renew), clock, "taker")
    owner.acquire()
    clock.now += 31
    with pytest.raises(WriterFenced):
        taker.acquire()
    owner.check()


def test_a_renewal_in_good_time_is_one_request_and_a_late_one_finds_out_who_came(
    store: WatchedStore, clock: Clock
) -> None:
    owner = lease(store, clock, "owner")
    owner.acquire()
    store.gets = store.puts = store.sizes = 0
    for _ in range(5):
        clock.now += 10
        owner.renew()
    assert (store.gets, store.puts, store.sizes) == (0, 5, 0)
    clock.now += 15
    lease(store, clock, "other")._take(owner._number + 1)
    with pytest.raises(WriterFenced):
        owner.renew()


def test_an_idle_holder_renews_seldom_and_is_taken_over_only_after_the_longer_time(
    store: WatchedStore, clock: Clock
) -> None:
    owner = Lease(store, seconds=30, idle_seconds=120, wall=clock, monotonic=clock, wait=clock.wait)
    owner._process = replace(owner._process, boot="owner")
    owner.acquire()
    assert owner.lasts == 30
    owner.renew(idle=True)
    assert owner.lasts == 120
    clock.now += 100
    owner.check()
    early = lease(store, clock, "early")
    with pytest.raises(WriterFenced, match="another applier owns"):
        early.acquire()
    clock.now += 121
    lease(store, clock, "taker").acquire()
    with pytest.raises(WriterFenced):
        owner.renew(idle=True)


def test_a_holder_whose_answer_was_lost_trusts_the_shorter_of_the_two_times(store: WatchedStore, clock: Clock) -> None:
    """Its record may say 30 s already, and another applier may go by that."""
    owner = Lease(store, seconds=30, idle_seconds=120, wall=clock, monotonic=clock, wait=clock.wait)
    owner.acquire()
    owner.renew(idle=True)
    clock.now += 40
    store.refuses = EVERYTHING
    with pytest.raises(StoreRefused):
        owner.renew()
    store.refuses = None
    with pytest.raises(StoreUnavailable, match="lapsed"):
        owner.check()


def test_a_renewal_says_how_far_the_loop_of_its_holder_has_come(store: WatchedStore, clock: Clock) -> None:
    owner = lease(store, clock, "owner")
    owner.acquire()
    owner.renew(sign=Sign(990.0, 980.0, 7, 3))
    assert Holder.decode(store.get(keys.APPLY_LEASE)).sign == Sign(990.0, 980.0, 7, 3)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a /proc that hides processes")
def test_a_living_holder_of_another_user_is_not_taken_for_dead_where_its_process_is_hidden() -> None:
    holder = replace(current_process(), pid=os.getpid())
    program = (
        "import json, os, sys; from sluice.contract.lease import Process; "
        "from sluice_spark.lease import _saw_end, current_process; "
        "os.setgid(65534); os.setuid(65534); "
        "print(_saw_end(current_process(), of=Process(**json.loads(sys.argv[1]))))"
    )
    hidden = 'mount -t proc -o hidepid=2 proc /proc && exec "$0" -c "$1" "$2"'
    done = commands.ended("unshare", "-m", "sh", "-c", hidden, sys.executable, program, json.dumps(asdict(holder)))
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.stdout == "False\n", done.stderr
