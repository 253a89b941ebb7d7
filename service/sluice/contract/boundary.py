"""What the applier states in the lake for whoever reads it: boundaries, each an LSN with one Delta version of every
table. `.sluice/boundary/<pipeline>/<n / 1000>/<n>.json` below `lake.uri`.

One writer: the applier. Numbers are dense and create-only, and the LSNs of one manifest never fall. A boundary is
offered while its object is there: all that reading it needs stays as long. The distribution `sluice-lake` reads
these objects without anything of this package, so what a field means is stated here and nowhere else.
"""

from dataclasses import dataclass, field

from sluice.contract import codec

FORMAT_VERSION = 1
FOLDER = ".sluice/boundary/"
"""Below `lake.uri`. No lake table lies there: a dot in a name becomes `~2e` in its path."""
IN_A_FOLDER = 1000
"""Boundaries. Who looks for the newest lists the folders, and then the last one."""
_WHAT = "a boundary of the lake"


@dataclass(frozen=True, slots=True)
class BoundaryTable:
    """One lake table at a boundary: Delta `version` of the table at `path` below the lake's address. At that
    version the table has the transaction identifier `marker` with the version `marker_version`: the table is
    the one that was meant, and not another one that took its place.
    """

    schema: str
    table: str
    path: str
    version: int
    marker: str
    marker_version: int


@dataclass(frozen=True, slots=True)
class LakeBoundary:
    """All `tables` hold what had ended through `lsn` (`X/Y`), the end of entry `seq` of `manifest`, and nothing else.

    `time` is when the last of these transactions was committed, by the source's clock, or an upper bound of it.
    `reached` is a time through which no transaction is missing: when the last one that the stream brought was
    committed. Nothing else shows it: by their clocks, ingest and the applier may be far behind. No table was beyond its
    version at `current_at`. The boundary was published at `published_at`; it is offered for `retention_seconds` after
    the next one was published. `left_out` names the other tables (`schema.table`, a part with a dot or a double quote
    quoted as in SQL) with their states. `sha256` is the hash of the entry: a manifest with another one under that
    number is not the one whose positions these are. `first` is the number of the first boundary of this log: positions
    in those before it are of another manifest, or of entries that were lost when an older copy was restored (0: not
    stated). Times are ISO 8601 UTC.
    """

    number: int
    pipeline: str
    manifest: str
    lsn: str
    seq: int
    time: str
    current_at: str
    published_at: str
    retention_seconds: float
    tables: tuple[BoundaryTable, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    sha256: str = ""
    reached: str = ""
    first: int = 0

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "LakeBoundary":
        """Raises ManifestCorrupt or FormatTooNew."""
        return codec.decode_versioned(LakeBoundary, data, version=FORMAT_VERSION, what=_WHAT)


def folder(pipeline: str) -> str:
    """Where the boundaries of a pipeline lie."""
    return f"{FOLDER}{pipeline}/"


def key(pipeline: str, number: int) -> str:
    """Where boundary `number` lies."""
    return f"{folder(pipeline)}{number // IN_A_FOLDER:013d}/{number:016d}.json"


def number_of(key: str) -> int:
    """The number in a `key`; 0 for any other object."""
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isascii() and name.isdecimal() else 0
