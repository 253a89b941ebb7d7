"""What garbage collection leaves behind in place of the objects it deletes: `gc/<seq>.json`,
create-only, written before the first deletion.

It says that no object is needed any more which only entries through `through_seq` name, unless a
transaction that is still prepared after that entry holds it. It names the hash of that entry, so
that it excuses missing objects of this one chain and of no other. The manifest itself is never
shortened.
"""

import json
from dataclasses import asdict, dataclass

from sluice.errors import FormatTooNew, ManifestCorrupt

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Horizon:
    """`written_at` is ISO 8601 UTC, for people."""

    through_seq: int
    entry_sha256: str
    written_at: str

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "Horizon":
        """Raises ManifestCorrupt or FormatTooNew."""
        try:
            value = json.loads(data)
            version = value["format_version"]
            found = Horizon(value["through_seq"], value["entry_sha256"], value["written_at"])
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestCorrupt("an object below gc/ is not readable JSON of the expected form") from error
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise FormatTooNew(
                f"an object below gc/ has format version {version}; this Sluice reads up to {FORMAT_VERSION}"
            )
        if not isinstance(found.through_seq, int):
            raise ManifestCorrupt("an object below gc/ has a field of the wrong type")
        return found
