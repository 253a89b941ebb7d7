"""Which small or half-empty data files of a table are worth writing anew as one.

Every direct commit leaves a small file, and vectors leave rows that nobody reads. Owns that the number
of small files stays bounded: they are joined by tiers of size, so that a row is written anew about
once for each tier, whatever the number of windows. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TIERS = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)
"""A file with fewer bytes of live rows than one of these belongs to that tier; larger files are not
joined."""
FILES_OF_A_TIER = 16
"""As many files of one tier are joined."""
MOST_REMOVED = 0.5
"""A file with a larger share of removed rows is written anew."""
ROUND_BYTES = 32 * 1024 * 1024
"""What is written anew at once: its rows are in memory, and readers of the next window wait for it."""
PACKED = 4
"""Bytes in memory that count like one of a file: rows that are alike take next to nothing in a file."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """A live file: bytes and rows, removed rows included, and how many are removed. Its rows take
    `memory` bytes when they are read, as far as that is known.
    """

    path: str
    size: int
    rows: int
    removed: int
    memory: int = 0

    @property
    def live_bytes(self) -> int:
        """What its live rows would take alone, about."""
        return max(self.size, self.memory // PACKED) * (self.rows - self.removed) // max(self.rows, 1)


def worth_joining(files: Iterable[FileSize]) -> list[str]:
    """Paths of the files to write anew now as one file, empty when it is not worth it."""
    tiers: dict[int, list[FileSize]] = defaultdict(list)
    sparse: list[FileSize] = []
    for file in files:
        tier = next((place for place, limit in enumerate(TIERS) if file.live_bytes < limit), None)
        if tier is not None:
            tiers[tier].append(file)
        elif is_sparse(file) and file.live_bytes <= ROUND_BYTES:
            sparse.append(file)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FILES_OF_A_TIER:
            return _within_a_round(tiers[tier])
    return _within_a_round(sparse)


def is_sparse(file: FileSize) -> bool:
    """Whether most of its rows are removed."""
    return file.removed > MOST_REMOVED * file.rows


def _within_a_round(files: Sequence[FileSize]) -> list[str]:
    chosen: list[str] = []
    total = 0
    for file in sorted(files, key=lambda file: file.live_bytes):
        total += file.live_bytes
        if total > ROUND_BYTES and len(chosen) > 1:
            break
        chosen.append(file.path)
    return chosen
