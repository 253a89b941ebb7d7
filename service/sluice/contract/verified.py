"""What `sluice verify` found last of each table, kept as `verify/log/<n>.json`.

Numbers are dense from 1 and create-only: whoever compares writes the next one from the newest, and
begins again where somebody else was first. So nothing that one of several writers found is lost.
Nothing but people and alerts depends on it.
"""

from dataclasses import dataclass, field

from sluice.contract import codec

FORMAT_VERSION = 1
EQUAL, DIFFERENT, NOT_COMPARED = OUTCOMES = ("equal", "different", "not compared")


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """Of generation `generation`. It was equal through `lsn` when it was last found so, at `at` (0 and empty:
    never). The newest comparison had the `outcome`, one of OUTCOMES, at `compared_at`, with so many
    `differences` at `different_lsn` or the `reason` why it was none; `possible` is False where there can be
    none. Times are ISO 8601 UTC.
    """

    generation: int
    outcome: str
    compared_at: str
    lsn: int = 0
    at: str = ""
    differences: int = 0
    reason: str = ""
    possible: bool = True
    different_lsn: int = 0


@dataclass(frozen=True, slots=True)
class Verified:
    """By table id. `every_seconds` is how often each table is to be compared since `since`; 0 when nobody
    is expected to compare continuously.
    """

    every_seconds: float = 0.0
    since: str = ""
    tables: dict[str, VerifiedTable] = field(default_factory=dict)

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Verified":
        """Raises ManifestCorrupt, FormatTooNew."""
        return codec.decode_versioned(Verified, data, version=FORMAT_VERSION, what="a record below verify/log/")
