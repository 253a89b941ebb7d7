"""Chunks of a snapshot: ranges of blocks, what is left of a table, and when chunks that were read at
different moments may be put together.

**Why chunks of several moments give the table.** Cut the blocks of a table into ranges, and read
range i at a snapshot S(i): the chunk has every row version that S(i) sees in the range. All changes
that committed after the first snapshot are in the stream, because the table's generation was in the
manifest before it. Take the chunk's rows as inserts at position S(i), behind every commit that ended
at or before S(i), and replay them with the changes in the order of positions, where an insert
replaces a row of its key, and a change of a key that is not there begins a row or does nothing. Then
at the last snapshot S(n) every key has the row that the source had. Proof, for one key:

1. *Once the replay has the key right, it stays right*: every later change of the key is in the
   stream, and a chunk says what the source has at its own moment.
2. *A chunk that has the key makes it right*, by definition. The replay has a row of the key only
   after a chunk or a change gave it one, and either is right. So it never has a row too many.
3. *A key in no chunk.* If S(1) sees no row of it, the replay begins right. If S(1) sees a row, its
   version lies in exactly one range j. As chunk j does not have it, the version was gone by S(j):
   updated, deleted, or moved to another key or another page. That is a change in the stream behind
   S(1), and the last such change says what the key has since: nothing (a deletion), or the row (an
   insert or an update) with every value that it sends.

So a row that moves from an unread range to one that was read before (in no chunk), or the other way
(in two), ends right. What breaks the proof is refused, and the snapshot begins again (`not_joinable`):

* A value that is not sent, as it is stored out of line and did not change: an update that moved such
  a row from an unread range to one that was read is in the stream without it, and in no chunk.
* Tables whose key is not their replica identity, or that have none: rows that are in two chunks, or
  that share a key until a deferred constraint is checked, cannot be distinguished.
* Publications that leave out inserts, updates or deletions, and `source.origin: none`, which leaves
  out changes by where they come from: a row may then leave a range without an event.
* Another timeline than that of the first chunk: the server may not have the commits that it shows.
* A table that was rewritten or truncated: its blocks are others. Whoever resumes compares the number
  of its storage, and its facts, with those of the first chunk.

Standard library only, pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sluice.contract.schema import TableSchema

BLOCK_BYTES = 8192
"""PostgreSQL's, unless it was built otherwise: sizes of ranges are estimates."""
ENDLESS = 0
"""The end of a range that has all blocks from its first on, also those that come later."""


LEAVES_OUT = "source.origin leaves out changes"


@dataclass(frozen=True, slots=True, order=True)
class BlockRange:
    """Blocks of the relation with oid `relation` (a partition, for a partitioned table), from `first`
    to before `end`. A relation that is read by another way than by its blocks has one range of all.
    """

    relation: str
    first: int
    end: int

    @property
    def is_whole(self) -> bool:
        return (self.first, self.end) == (0, ENDLESS)


def united(ranges: Iterable[BlockRange]) -> tuple[BlockRange, ...]:
    """The same blocks in as few ranges as possible. Raises ValueError when a block is in two of them,
    or a range is none.
    """
    found: list[BlockRange] = []
    for one in sorted(ranges):
        if one.first < 0 or (one.end != ENDLESS and one.end <= one.first):
            raise ValueError(f"no range of blocks: {one.first} to {one.end}")
        last = found[-1] if found and found[-1].relation == one.relation else None
        if last is None or (last.end != ENDLESS and last.end < one.first):
            found.append(one)
        elif last.end == one.first:
            found[-1] = BlockRange(one.relation, last.first, one.end)
        else:
            raise ValueError(f"block {one.first} of relation {one.relation} is in two ranges")
    return tuple(found)


def is_complete(relations: Sequence[str], done: Iterable[BlockRange]) -> bool:
    """Whether `done`, united, has every block of each of `relations`."""
    return {one.relation for one in done if one.is_whole} >= set(relations)


def remaining(
    relations: Sequence[str], done: Iterable[BlockRange], blocks: Mapping[str, int], *, size: int
) -> tuple[BlockRange, ...]:
    """What of `relations` is not in `done`, united, in ranges of `size` blocks, in order.

    `blocks` says how long a relation is now; one that it does not have is not cut. The last range of
    a relation is endless: rows in blocks that the relation gets later are behind no chunk's back.
    """
    by_relation = {relation: list(group) for relation, group in groupby(done, key=lambda one: one.relation)}
    found: list[BlockRange] = []
    for relation in relations:
        first: int | None = 0
        for one in by_relation.get(relation, []):
            if first is not None and first < one.first:
                found += _cut(relation, first, one.first, size)
            first = None if one.end == ENDLESS else one.end
        if first is not None:
            # The last range takes the rest, so that a table that is hardly larger than one is not cut.
            last = max(first, (blocks.get(relation, 0) - 1) // size * size)
            found += _cut(relation, first, last, size)
            found.append(BlockRange(relation, last, ENDLESS))
    return tuple(found)


def _cut(relation: str, first: int, end: int, size: int) -> list[BlockRange]:
    return [BlockRange(relation, start, min(start + size, end)) for start in range(first, end, size)]


def not_joinable(schema: TableSchema, *, publishes: str, origin: str) -> str:
    """Why chunks of this table that were read at different moments cannot be put together; empty when
    they can, as long as every value is sent. `publishes` has a letter for each kind of change that is
    sent.
    """
    if not schema.key_columns:
        return "the table has no key by which rows that were read twice could be recognized"
    if schema.replica_identity not in ("d", "i") or not all(column.identity for column in schema.key_columns):
        return "the table's key is not its replica identity"
    if not set("iud") <= set(publishes):
        return "the publication does not send every kind of change"
    if origin != "any":
        return LEAVES_OUT
    return ""
