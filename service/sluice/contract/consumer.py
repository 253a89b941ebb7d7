"""What a reader of the spool leaves there so that pruning waits for it: `consumers/<name>.json`.

One writer: the consumer, over and over. It holds what is behind `seq` for as long as the record is young
(`spool.consumer_hold`); then it has lost its place, and finds that out by name when it reads on.
"""

from dataclasses import dataclass

from sluice.contract import codec, keys

FORMAT_VERSION = 1
FOLDER = "consumers/"
_WHAT = "the record of a consumer"


@dataclass(frozen=True, slots=True)
class Consumer:
    """`name` has read everything through entry `seq` at `at` (ISO 8601 UTC). `query` is chosen by each query when it
    begins to run: of two that have one name, the one that began first finds that the record is not its own any more.
    """

    name: str
    seq: int
    at: str
    query: str = ""

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "Consumer":
        """Raises ManifestCorrupt or FormatTooNew."""
        return codec.decode_versioned(Consumer, data, version=FORMAT_VERSION, what=_WHAT)


def key(name: str) -> str:
    """Where the record of the consumer called `name` lies."""
    return f"{FOLDER}{keys.path_part(name)}.json"
