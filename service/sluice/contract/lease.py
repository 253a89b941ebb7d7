"""Who may commit to the lake, and that he lives: the record that the applier renews.

A record that is renewed says more than that its process runs: when its loop last went round, and which reports were
the newest then. So an applier with nothing to do need not write a report each time only to say that it lives, and
who reads need not list reports that are the ones he knows.
"""

from dataclasses import dataclass

from sluice.contract import codec

FORMAT_VERSION = 1
_WHAT = "the lease of the applier"


@dataclass(frozen=True, slots=True)
class Process:
    """One process among all that ever ran anywhere. A text is empty where the system does not say.

    The boot id distinguishes machines that were cloned with their machine id, the namespace
    containers on one kernel, and the start time two processes that had the same number in turn.
    """

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Sign:
    """What the holder's loop had come to at the renewal: when it last went round and last had success (unix seconds by
    its clock, 0 for never), and the numbers of its newest reports (`keys.apply_log`, `keys.apply_complete`).
    """

    round_at: float = 0.0
    succeeded_at: float = 0.0
    log_number: int = 0
    complete_number: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """What `apply/lease.json` says: who owns under which claim, and when it last said so (seconds of the wall clock; 0
    when it gave the lease back), for how many seconds.
    """

    instance: str
    number: int
    renewed_at: float
    seconds: float
    process: Process
    sign: Sign = Sign()

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Holder":
        """Raises ManifestCorrupt or FormatTooNew."""
        return codec.decode_versioned(Holder, data, version=FORMAT_VERSION, what=_WHAT)
