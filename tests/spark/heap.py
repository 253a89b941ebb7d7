"""A table of the source as its blocks see it: rows move between blocks that were read and blocks that were not."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from sluice.contract.chunks import ENDLESS
from sluice.manifest.reader import load_state
from sluice_spark.spool import StorePrefix
from tests.spark import changes
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA

BLOCKS, RANGES = 8, 4
FACTS = changes.FACTS
_numbers = itertools.count()
Pick = Callable[[Sequence[Any]], Any]


@dataclass
class Heap:
    """A table of which every row has a block, and what was published of it."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    unread: list[int] = field(default_factory=lambda: list(range(RANGES)))
    place: StorePrefix = field(default_factory=lambda: StorePrefix(f"memory://{next(_numbers)}", "shop/", ()))
    manifest: Manifest = field(init=False)
    generation: int = 1
    empty: InitVar[Manifest | None] = None
    """The manifest of a pipeline, which is at `place`."""

    def __post_init__(self, empty: Manifest | None) -> None:
        self.manifest = empty or Manifest(self.place.open())
        self.manifest.table(SCHEMA)

    def begin_again(self) -> None:
        """Another generation: nothing of the table was read."""
        self.generation += 1
        self.unread = list(range(RANGES))
        self.manifest.table(SCHEMA, generation=self.generation, new=False)

    def write(self, pick: Pick, step: int) -> Change | None:
        key, block = pick(range(8)), pick(range(BLOCKS))
        kind = pick("uukd") if key in self.rows else "i"
        if kind == "d":
            del self.rows[key], self.blocks[key]
            return Change("d", {}, old={"id": key})
        if kind == "k":
            other = pick(range(8))
            if other in self.rows:
                return None
            row = {**self.rows.pop(key), "id": other, "v": step}
            del self.blocks[key]
            self.rows[other], self.blocks[other] = row, block
            return Change("u", dict(row), old={"id": key})
        self.rows[key] = {"id": key, "v": step, "big": pick([None, f"b{step}"]), "at": None}
        self.blocks[key] = block
        return Change(kind, dict(self.rows[key]))

    def read(self, place: int) -> None:
        """The part `place` as of now. The first one says what is read."""
        size = BLOCKS // RANGES
        first = place * size
        end = first + size if place < RANGES - 1 else BLOCKS
        found = [self.rows[key] for key, block in sorted(self.blocks.items()) if first <= block < end]
        blocks, is_first = (first, ENDLESS if end == BLOCKS else end), len(self.unread) == RANGES
        self.unread.remove(place)
        self.manifest.chunk(found, SCHEMA, blocks, generation=self.generation, first=is_first)

    def finish(self) -> None:
        self.manifest.finish(SCHEMA, generation=self.generation)

    @property
    def last_lsn(self) -> int:
        snapshot = load_state(self.manifest.store).tables["16385"].snapshot
        assert snapshot is not None
        return snapshot.snapshot_lsn
