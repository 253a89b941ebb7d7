"""The form of a row that source and lake hash: the rules that both sides keep. Pure.

The form of a row is the forms of its columns in order with SEPARATOR between them. A null has the
empty form. Floats have the digits of their bits (`NaN` for every one of them), one-dimensional
arrays of floats those that array_send gives them, without its flags, everything else its type's output text, and
where that can be any text, the number that its hash is. Its hash is `hashtextextended` with a seed.
`sluice.source.row_hashes` and `sluice_spark.verify.canonical` each make it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contract import codec, keys
from sluice.contract.applied import AppliedTable
from sluice.contract.types import LakeType

SEPARATOR = "|"
FLOATS = ("float", "double")
FEWEST_BITS, MOST_BITS = 6, 16
_ROWS_A_RANGE = 512
FORMAT_VERSION = 1
PROBES = ("", "a", "abcd", "abcdefgh", "abcdefghijkl", "abcdefghijklm", "ä€😀" * 11)
"""Texts of the lengths at which the hash function does something else: both sides must agree on them."""
ANSWERS = "SLUICE_ANSWERS"
"""The environment variable with the file descriptor for answers, in the process that reads the lake."""

Sums = dict[int, tuple[int, int]]
"""By range: how many rows it has, and the sum of their hashes modulo 2**64."""


def is_hashed(lake: LakeType) -> bool:
    """Whether a column's form is the number of its text's hash."""
    return lake.family == "text" or (lake.is_array and lake.element not in FLOATS)


def range_bits(rows: int) -> int:
    """The ranges of a table of about `rows` rows are the values of so many bits of the hash of the key."""
    return min(max((max(rows, 0) // _ROWS_A_RANGE).bit_length(), FEWEST_BITS), MOST_BITS)


@dataclass(frozen=True, slots=True)
class LakeQuestion:
    """What the lake table `target` of `table_id` holds as of `lsn`, which the manifest has passed. Without
    `ranges` the sums of all ranges are asked for, with them the rows in these.

    The columns are those of `schema_version`. `wait_seconds` is how long to wait for ingest to
    pass `lsn`, and `probes` are the source's hashes of PROBES. `before` is what the applier said of the lake table when
    nobody had passed `lsn`: what it says later may be about changes on both sides of it, which cancel out.
    """

    table_id: str
    generation: int
    schema_version: int
    lsn: int
    seed: int
    bits: int
    as_hex: bool
    wait_seconds: float
    probes: tuple[int, ...]
    ranges: tuple[int, ...] = ()
    target: str = ""
    before: AppliedTable | None = None

    @property
    def key(self) -> str:
        """By which the lake table is known."""
        return keys.target_key(self.table_id, self.target)

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "LakeQuestion":
        """Raises ManifestCorrupt, FormatTooNew."""
        return codec.decode_versioned(LakeQuestion, data, version=FORMAT_VERSION, what="a question to the lake")


@dataclass(frozen=True, slots=True)
class Row:
    """A row as `verify` sees it: the hash of its key, of all of it, and the texts of its key."""

    key_hash: int
    row_hash: int
    key: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class LakeAnswer:
    """`sums` has [range, rows, sum] of each range with rows, `rows` [hash of the key, hash of the row,
    texts of the key] of those asked for.

    `delta_version` is the version that was read, and `base_lsn` the position it is complete through;
    what changed after that up to the question's LSN was taken from the spool: `changed` keys.
    `refused` says why the table cannot be compared. `waited`: the time of the question ran out over it.
    """

    delta_version: int = -1
    base_lsn: int = 0
    changed: int = 0
    sums: tuple[tuple[int, int, int], ...] = ()
    rows: tuple[tuple[int, int, tuple[str | None, ...]], ...] = ()
    refused: str = ""
    error: str = ""
    hint: str = ""
    exit_code: int = 0
    waited: bool = False

    def encode(self) -> bytes:
        return codec.encode_versioned(self, FORMAT_VERSION)

    @staticmethod
    def decode(data: bytes) -> "LakeAnswer":
        """Raises ManifestCorrupt, FormatTooNew."""
        return codec.decode_versioned(LakeAnswer, data, version=FORMAT_VERSION, what="an answer about the lake")


def differing(source: Sequence[Row], lake: Sequence[Row]) -> "Difference":
    """Which rows differ, of the same ranges of both sides."""
    here: dict[int, list[Row]] = {}
    there: dict[int, list[Row]] = {}
    for rows, by_key in ((source, here), (lake, there)):
        for row in rows:
            by_key.setdefault(row.key_hash, []).append(row)
    changed, missing, extra = [], [], []
    for key_hash in here.keys() | there.keys():
        ours, theirs = here.get(key_hash, []), there.get(key_hash, [])
        if sorted(row.row_hash for row in ours) == sorted(row.row_hash for row in theirs):
            continue
        if not theirs:
            missing += ours
        elif not ours:
            extra += theirs
        else:
            changed.append(ours[0])
    return Difference(tuple(changed), tuple(missing), tuple(extra))


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows whose keys are on both sides and whose values differ, those that the lake lacks, and those
    that only the lake has.
    """

    changed: tuple[Row, ...] = ()
    missing: tuple[Row, ...] = ()
    extra: tuple[Row, ...] = ()

    def __len__(self) -> int:
        return len(self.changed) + len(self.missing) + len(self.extra)

    def plus(self, other: "Difference") -> "Difference":
        return Difference(self.changed + other.changed, self.missing + other.missing, self.extra + other.extra)
