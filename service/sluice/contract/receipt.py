"""The only thing that may move the acknowledged position."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DurableReceipt:
    """Proof that manifest entry `seq` is stored for good, so that every transaction that ended at
    or before `through_lsn` survives us.

    Made by `sluice.manifest.writer` after a create that succeeded or was read back, and nowhere else;
    a test searches the tree for that.
    """

    seq: int
    through_lsn: int
