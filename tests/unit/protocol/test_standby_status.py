"""Status messages and the signs of a stopping server."""

import struct

import pytest

from sluice.errors import ProtocolViolation
from sluice.protocol.constants import POSTGRES_EPOCH_US
from sluice.protocol.standby_status import STOP_BOUND_S, STOP_REQUESTS, ShutdownWatch, StandbyStatus


def test_a_status_message_is_laid_out_as_the_protocol_says() -> None:
    message = StandbyStatus(0x16B374D848, 0x16B3740000, reply_requested=True).encode(POSTGRES_EPOCH_US + 7)
    assert message == b"r" + struct.pack(">QQQqB", 0x16B374D848, 0x16B3740000, 0x16B3740000, 7, 1)


@pytest.mark.parametrize(("received", "flushed"), [(10, 11), (-1, -1), (1 << 64, 0)])
def test_more_flushed_than_received_cannot_even_be_said(received: int, flushed: int) -> None:
    with pytest.raises(ProtocolViolation):
        StandbyStatus(received, flushed, reply_requested=False)


def asked(watch: ShutdownWatch, end_lsn: int, times: int, *, flushed_lsn: int = 0, now: float = 0.0) -> None:
    for _ in range(times):
        watch.asked(end_lsn, flushed_lsn=flushed_lsn, now=now)


def test_repeated_requests_at_one_position_mean_that_the_server_stops() -> None:
    watch = ShutdownWatch()
    asked(watch, 10, STOP_REQUESTS - 1)
    assert not watch.stopping
    asked(watch, 10, 1)
    assert watch.stopping


def test_requests_at_moving_positions_or_at_what_is_acknowledged_mean_nothing() -> None:
    watch = ShutdownWatch()
    for end_lsn in range(10, 20):
        asked(watch, end_lsn, 1)
    asked(watch, 20, 10, flushed_lsn=20)
    assert not watch.stopping


def test_changes_from_the_server_take_the_suspicion_back() -> None:
    watch = ShutdownWatch()
    asked(watch, 10, STOP_REQUESTS)
    watch.busy()
    asked(watch, 10, STOP_REQUESTS - 1)
    assert not watch.stopping


def test_a_stopping_server_waits_a_bounded_time_and_longer_only_while_there_is_progress() -> None:
    watch = ShutdownWatch()
    asked(watch, 10, STOP_REQUESTS, now=100.0)
    assert not watch.overdue(100.0 + STOP_BOUND_S)
    watch.progressed(104.0)
    assert not watch.overdue(104.0 + STOP_BOUND_S)
    assert watch.overdue(104.1 + STOP_BOUND_S)
