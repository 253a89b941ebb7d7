"""The acknowledged position: what moves it, and what never does."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.contract.receipt import DurableReceipt
from sluice.errors import ProtocolViolation
from sluice.ingest.commit.watermark import Watermark


@pytest.mark.parametrize("receipt", [DurableReceipt(1, 700), DurableReceipt(1, 50)])
def test_a_receipt_beyond_the_received_or_before_the_flushed_is_refused_and_changes_nothing(
    receipt: DurableReceipt,
) -> None:
    watermark = Watermark(start_lsn=100)
    watermark.receive(600)
    with pytest.raises(ProtocolViolation):
        watermark.durable(receipt)
    assert watermark.flushed_lsn == 100


class Acknowledging(RuleBasedStateMachine):
    """Flushed stays behind the store and behind the wire, and never goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.watermark = Watermark(start_lsn=1000)
        self.highest_received = 1000
        self.stored = 1000
        self.seq = 0
        self.before = 1000

    @rule(lsn=st.integers(0, 10_000))
    def receive(self, lsn: int) -> None:
        self.watermark.receive(lsn)
        self.highest_received = max(self.highest_received, lsn)

    @precondition(lambda self: self.highest_received > self.stored)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        self.stored = data.draw(st.integers(self.stored, self.highest_received))
        self.seq += 1
        self.watermark.durable(DurableReceipt(self.seq, self.stored))

    @rule(lsn=st.integers(0, 20_000), back=st.integers(0, 3))
    def lie(self, lsn: int, back: int) -> None:
        receipt = DurableReceipt(self.seq - back, lsn)
        with pytest.raises(ProtocolViolation):
            self.watermark.durable(receipt)

    @invariant()
    def flushed_is_what_the_store_holds(self) -> None:
        assert self.watermark.flushed_lsn == self.stored <= self.highest_received == self.watermark.received_lsn
        assert self.watermark.flushed_lsn >= self.before
        self.before = self.watermark.flushed_lsn


TestAcknowledging = Acknowledging.TestCase
