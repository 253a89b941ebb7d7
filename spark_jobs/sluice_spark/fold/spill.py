"""A window that is too large for memory, on local disk: one pass cuts it into parts, and each run
of parts that fits is read back and folded. (`TableApply` decides which window that is.)

Owns that the parts together have the effect of the window, each change in at most one part (a
TRUNCATE in all), and that no more than the limit is read back at once. From a part that is too
large, changes that later ones replace are dropped, and it is cut again. For that it is read in order: files of one
entry overlap, and executors send their shares in any order. If it is too large even
then, the table becomes stale with a reason. Files have no names (TMPDIR decides where they are), so
that none is left, however the process ends.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, UnsupportedChange
from sluice_spark.fold.condense import END, InTurn, Place, behind, condensed, first_place
from sluice_spark.fold.fold import in_order
from sluice_spark.fold.partition import PARTS, Cutter, spaced, weight

Versioned = tuple[pa.Table, TableSchema]

_CODEC = pa.ipc.IpcWriteOptions(compression="lz4")
_DEEPEST = 4
"""Sixty-four parts of sixty-four and so on: rows that are together by then have the same key."""

_SMALL_BYTES = 64 << 10
"""A batch of so many is not divided: each has a cost."""


def portions(window: Iterable[Versioned], cutter: Cutter, *, limit: int) -> Generator[list[Versioned], None, None]:
    """The window's changes in portions to fold one after the other, each at most `limit` by
    `weight` or one change. Raises UnsupportedChange, ApplyError.

    With a TRUNCATE in the window every portion has it, and there is at least one portion.
    """
    try:
        with ExitStack() as files:
            yield from _portions(
                _Spill(cutter, files, limit=limit), ((spaced(rows), version) for rows, version in window)
            )
    except OSError as error:
        raise ApplyError(
            f"a large window could not go over local disk ({error.strerror or type(error).__name__})",
            hint="point TMPDIR to a disk with more free space",
        ) from error


def coalesced(window: Iterable[Versioned], *, limit: int) -> Iterator[Versioned]:
    """The same changes in fewer, larger tables of up to about `limit` bytes: cutting has a cost per
    table.
    """
    waiting: list[pa.Table] = []
    version: TableSchema | None = None
    size = 0
    for rows, its_version in window:
        if waiting and version is not None and (its_version.version != version.version or size + rows.nbytes > limit):
            yield pa.concat_tables(waiting), version
            waiting, size = [], 0
        waiting.append(rows)
        version = its_version
        size += rows.nbytes
    if waiting and version is not None:
        yield pa.concat_tables(waiting), version


def _portions(spill: "_Spill", window: Iterable[Versioned]) -> Iterator[list[Versioned]]:
    spill.fill(window)
    together: list[int] = []
    size = 0
    for part in range(PARTS):
        if spill.weights[part] > spill.limit and spill.rows[part] > 1:
            yield from _portions(
                spill.again(part),
                condensed(spill.lasting(part), spill.cutter, at_once=spill.limit // 4),
            )
            continue
        if together and size + spill.weights[part] > spill.limit:
            yield spill.portion(together)
            together, size = [], 0
        if spill.weights[part]:
            together.append(part)
            size += spill.weights[part]
    if together or (spill.truncates and not any(spill.weights)):
        yield spill.portion(together)


@dataclass(frozen=True, slots=True, order=True)
class _Batch:
    """Where changes of a part are that begin at `place`: which batch they are in the file of `version`."""

    place: Place
    version: int
    number: int


class _Spill:
    """One level of parts: an unnamed file for each part and schema version, closed by `files` at
    the latest.
    """

    def __init__(self, cutter: Cutter, files: ExitStack, *, limit: int, truncates: Iterable[Versioned] = ()) -> None:
        self.limit = limit
        self.weights = [0] * PARTS
        self.rows = [0] * PARTS
        self.truncates = list(truncates)
        self.cutter = cutter
        self._open = files
        self._versions: dict[int, TableSchema] = {}
        self._files: dict[tuple[int, int], IO[bytes]] = {}
        self._batches: list[list[_Batch]] = [[] for _ in range(PARTS)]

    def fill(self, window: Iterable[Versioned]) -> None:
        with ExitStack() as stack:
            writers: dict[tuple[int, int], pa.RecordBatchFileWriter] = {}
            numbers: Counter[tuple[int, int]] = Counter()
            for rows, version in window:
                self._versions[version.version] = version
                for part, changes in self.cutter.cut(self._without_truncates(rows, version)):
                    place = (part, version.version)
                    if place not in writers:
                        self._files[place] = self._open.enter_context(TemporaryFile(prefix="sluice-window-"))
                        writers[place] = stack.enter_context(
                            pa.ipc.new_file(self._files[place], changes.schema, options=_CODEC)
                        )
                    for batch in self._in_batches(changes):
                        writers[place].write_batch(batch)
                        begins = first_place(pa.Table.from_batches([batch]))
                        self._batches[part].append(_Batch(begins, version.version, numbers[place]))
                        numbers[place] += 1
                    self.weights[part] += weight(changes, version)
                    self.rows[part] += len(changes)

    def _in_batches(self, changes: pa.Table) -> Iterator[pa.RecordBatch]:
        """In order and small where they are many, so that few of them overlap when they are read."""
        most = max(_SMALL_BYTES, self.limit // PARTS)
        if changes.nbytes <= most:
            yield from changes.combine_chunks().to_batches()
            return
        rows = max(1, len(changes) * most // changes.nbytes)
        yield from in_order(changes).combine_chunks().to_batches(max_chunksize=rows)

    def read(self, part: int) -> Iterator[InTurn]:
        """The part's changes in the order in which their tables begin; its files are deleted at the end."""
        batches = sorted(self._batches[part])
        self._batches[part] = []
        with ExitStack() as stack:
            files = {
                number: pa.ipc.open_file(stack.enter_context(file))
                for number in self._versions
                if (file := self._files.pop((part, number), None)) is not None
            }
            for one, until in zip(batches, [*(after.place for after in batches[1:]), END], strict=True):
                rows = pa.Table.from_batches([files[one.version].get_batch(one.number)])
                yield InTurn(rows, self._versions[one.version], until)

    def lasting(self, part: int) -> Iterator[InTurn]:
        """The part's changes, without those that a TRUNCATE made an end of if nobody asks for them."""
        changes = self.read(part)
        return changes if self.cutter.each_transaction else behind(changes, self.truncates)

    def portion(self, parts: Iterable[int]) -> list[Versioned]:
        return [*self.truncates, *((rows, version) for part in parts for rows, version, _ in self.read(part))]

    def again(self, part: int) -> "_Spill":
        """A spill that cuts this part further."""
        level = self.cutter.level + 1
        if level == _DEEPEST:
            raise UnsupportedChange(
                f"{self._together()}, and the {self.rows[part]} changes that are left of them take "
                f"{self.weights[part]} bytes;"
                " raise apply.max_memory above that and resync the table"
            )
        return _Spill(replace(self.cutter, level=level), self._open, limit=self.limit, truncates=self.truncates)

    def _together(self) -> str:
        """What the changes of a part have in common that no cut divides."""
        if self.cutter.bits:
            return "equal rows of a table without a key can only be counted together"
        if len(self.cutter.groups.members):
            return "rows were moved to other keys without all their values and can only be followed together"
        return "changes of one row that do not replace each other can only be followed together"

    def _without_truncates(self, rows: pa.Table, version: TableSchema) -> pa.Table:
        is_truncate = pc.equal(rows[envelope.OP], envelope.OP_TRUNCATE)
        if not pc.any(is_truncate).as_py():
            return rows
        self.truncates.append((rows.filter(is_truncate), version))
        return rows.filter(pc.invert(is_truncate))
