"""What pruning leaves behind in place of what it deletes: `gc/<seq>.json`, create-only, written before
the first object is deleted; the same below `gc/cleaned/` after the last one; and below `gc/floor/`
the first entry that stays, written before an archive is.

It says that no object is needed any more which only entries through `through_seq` name, unless a
transaction that is still prepared after that entry holds it. It names the hash of that entry, so
that it excuses missing objects of this one chain and of no other."""

from dataclasses import dataclass

from sluice.contract import codec

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Horizon:
    """`written_at` is ISO 8601 UTC, for people."""

    through_seq: int
    entry_sha256: str
    written_at: str

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Horizon":
        """Raises ManifestCorrupt or FormatTooNew."""
        return codec.decode_versioned(Horizon, data, version=FORMAT_VERSION, what="an object below gc/")
