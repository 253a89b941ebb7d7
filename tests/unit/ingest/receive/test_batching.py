"""When batches are handed over, and what is read off the payloads on the way. Time is a number."""

from collections.abc import Callable, Sequence

from sluice.ingest.receive.batching import Batching, StreamLimits
from sluice.protocol.standby_status import STOP_REQUESTS, ShutdownWatch
from tests.support import wire

LIMITS = StreamLimits(batch_frames=100, batch_bytes=10_000, max_delay_s=2.0)


def source(payloads: Sequence[bytes], *, ended: bool = False) -> Callable[[int], tuple[int, memoryview]]:
    """Stands for libpq's get_copy_data."""
    left = list(payloads)

    def get(_: int) -> tuple[int, memoryview]:
        if left:
            payload = left.pop(0)
            return len(payload), memoryview(payload)
        return (-1 if ended else 0), memoryview(b"")

    return get


def batching(limits: StreamLimits = LIMITS) -> tuple[Batching, ShutdownWatch]:
    watch = ShutdownWatch()
    return Batching(limits, watch, start_lsn=10, now=0.0), watch


def row(size: int = 100) -> bytes:
    return wire.frame(b"I" + bytes(size), lsn=999_999)


def test_a_transactions_end_and_a_keepalive_move_the_received_position_and_a_row_does_not() -> None:
    batches, _ = batching()
    batches.take(source([wire.begin(50, 7), row()]), now=1.0)
    assert batches.received_lsn == 10
    batches.take(source([wire.commit(50, 60)]), now=1.0)
    assert batches.received_lsn == 60
    batches.take(source([wire.keepalive(80), wire.keepalive(70)]), now=1.0)
    assert batches.received_lsn == 80


def test_a_batch_is_full_at_either_limit_and_nothing_beyond_is_taken() -> None:
    for limits, expected in ((StreamLimits(batch_frames=3), 3), (StreamLimits(batch_bytes=300), 3)):
        batches, _ = batching(limits)
        get = source([row()] * 10)
        assert batches.take(get, now=1.0) == expected
        assert batches.full
        assert batches.ready(1.0)
        first = batches.hand_over(1.0)
        assert not first.flush
        assert batches.take(get, now=1.0) == expected
        assert len(first.frames) == expected


def test_age_counts_from_the_first_row_since_the_last_flush_across_batches() -> None:
    batches, _ = batching(StreamLimits(batch_frames=1, max_delay_s=2.0))
    get = source([row()] * 3)
    batches.take(get, now=1.0)
    assert not batches.hand_over(1.0).flush
    batches.take(get, now=2.0)
    assert not batches.hand_over(2.0).flush
    assert not batches.ready(2.9)
    assert batches.ready(3.0)
    late = batches.hand_over(3.0)
    assert late.flush
    assert late.frames == []
    assert not batches.ready(9.0)


def test_the_end_of_a_transaction_is_handed_over_at_once_when_the_reader_is_free() -> None:
    batches, _ = batching()
    batches.take(source([wire.begin(50, 7), row()]), now=1.0)
    batches.flush_from = 0.5
    assert not batches.ready(1.0), "no transaction has ended"
    batches.take(source([wire.commit(50, 60)]), now=1.1)
    batches.flush_from = None
    assert not batches.ready(1.1), "the reader is busy"
    batches.flush_from = 1.5
    wait = batches.wait_s(1.1)
    assert wait is not None
    assert not batches.ready(1.4)
    assert batches.ready(1.1 + wait)
    assert batches.hand_over(1.5).flush
    batches.take(source([wire.begin(70, 8), row()]), now=1.6)
    assert not batches.ready(1.6)


def test_what_a_full_batch_ended_is_flushed_when_the_reader_is_free_again() -> None:
    batches, _ = batching(StreamLimits(batch_frames=3, max_delay_s=2.0))
    batches.take(source([wire.begin(50, 7), row(), wire.commit(50, 60)]), now=1.0)
    assert not batches.hand_over(1.0).flush
    assert not batches.ready(1.2)
    batches.flush_from = 1.1
    assert batches.ready(1.2)
    assert batches.hand_over(1.2).flush


def test_keepalives_alone_are_handed_over_throttled_and_ask_for_no_flush() -> None:
    batches, _ = batching()
    batches.take(source([wire.keepalive(20)]), now=0.1)
    assert not batches.ready(0.1)
    wait = batches.wait_s(0.1)
    assert wait is not None
    assert batches.ready(0.1 + wait)
    assert not batches.hand_over(1.0).flush
    assert batches.wait_s(1.0) is None


def test_a_stopping_server_is_announced_at_once_and_every_batch_then_says_so() -> None:
    batches, watch = batching()
    batches.take(source([wire.keepalive(20, reply=True)] * STOP_REQUESTS), now=0.1)
    assert batches.reply_requested
    assert watch.stopping
    assert batches.ready(0.1)
    batch = batches.hand_over(0.1)
    assert (batch.flush, batch.shutdown, batch.received_lsn) == (True, True, 20)
    assert not batches.ready(0.1)


def test_what_is_acknowledged_already_keeps_no_server_waiting() -> None:
    batches, watch = batching()
    batches.acknowledged_lsn = 20
    batches.take(source([wire.keepalive(20, reply=True)] * 9), now=0.1)
    assert not watch.stopping


def test_malformed_payloads_pass_through_to_the_decoder_which_refuses_them() -> None:
    batches, _ = batching()
    malformed = [b"k", b"w", b"", b"k" + bytes(30), b"w" + bytes(24), b"?" * 40, bytes(26)]
    taken = batches.take(source([payload for payload in malformed if payload]), now=1.0)
    assert taken == len(malformed) - 1
    batches.flush_asked = True
    assert batches.ready(1.0)
    assert batches.hand_over(1.0).frames == [payload for payload in malformed if payload]


def test_the_end_of_the_snapshot_is_noticed_behind_the_last_payload() -> None:
    batches, _ = batching()
    assert batches.take(source([row()], ended=True), now=1.0) == 1
    assert batches.ended
