"""The position that may be acknowledged to PostgreSQL.

Invariant: `flushed_lsn` is the `through_lsn` of a DurableReceipt, never decreases, and is never
beyond what was received in this session or before it. Whatever it says is gone from the server for
good, so nothing but a receipt moves it: no timer, no received position, no keepalive (an idle
advance is first recorded as a `progress` entry and comes back here as its receipt). (PostgreSQL:
Streaming Replication Protocol, Standby status update.)
"""

from sluice.contract.receipt import DurableReceipt
from sluice.errors import ProtocolViolation
from sluice.lsn import show


class Watermark:
    """Acknowledgement of one session, begun at `start_lsn`, which must itself be durable.

    `received_lsn` is reported as the write position, `flushed_lsn` as the flush and apply position.
    Both are LSNs as integers.
    """

    def __init__(self, *, start_lsn: int) -> None:
        self.received_lsn = start_lsn
        self.flushed_lsn = start_lsn
        self._seq = 0

    def receive(self, lsn: int) -> None:
        """Everything up to `lsn` has been read from the socket. Lower values are ignored: positions
        on the wire are not monotonic.
        """
        if lsn > self.received_lsn:
            self.received_lsn = lsn

    def durable(self, receipt: DurableReceipt) -> bool:
        """Takes a receipt; returns whether `flushed_lsn` moved.

        Raises ProtocolViolation when receipts come out of order or claim what was never received:
        both would be faults of ours, and the position stays where it was.
        """
        if receipt.seq <= self._seq or receipt.through_lsn < self.flushed_lsn:
            raise ProtocolViolation(
                f"receipt {receipt.seq} through {show(receipt.through_lsn)} came after {self._seq} "
                f"through {show(self.flushed_lsn)}"
            )
        if receipt.through_lsn > self.received_lsn:
            raise ProtocolViolation(
                f"receipt {receipt.seq} claims {show(receipt.through_lsn)}, received is {show(self.received_lsn)}"
            )
        self._seq = receipt.seq
        moved = receipt.through_lsn > self.flushed_lsn
        self.flushed_lsn = receipt.through_lsn
        return moved
