"""What a replay writes into the lake that it makes, first of all: which one it is. `.sluice/replay.json` below the
lake's address. Its own reports and its lease lie in `.sluice/replay/`, in the form that they have in a spool.

Invariant: create-only. A lake has tables of one replay at most, and the same replay, given again, finds its own.
"""

from dataclasses import dataclass

from sluice.contract import codec

FORMAT_VERSION = 1
KEY = ".sluice/replay.json"
NOTES = ".sluice/replay/"
"""Where a replay keeps what an applier keeps below `apply/` of the spool."""
ANEW = "remove what the replay made, and begin it again"
"""The way back for a table that a replay cannot make: a snapshot of the pipeline's own brings nothing back."""
_WHAT = "the record of a replay"


@dataclass(frozen=True, slots=True)
class Replay:
    """The tables of `pipeline` as of `lsn`: its `manifest` through entry `seq`, whose bytes have the hash `sha256`, of
    which the transactions count that ended through `lsn`. `tables` has by schema.table the lake tables that each feeds,
    as text that is equal for equal targets.
    """

    pipeline: str
    manifest: str
    seq: int
    sha256: str
    lsn: int
    metadata_columns: bool
    tables: dict[str, str]

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Replay":
        """Raises ManifestCorrupt or FormatTooNew."""
        return codec.decode_versioned(Replay, data, version=FORMAT_VERSION, what=_WHAT)
