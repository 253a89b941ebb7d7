"""What the spool holds, read from its files alone, with nothing of the code that writes them.

Checks on the way: numbers are dense, each entry continues the bytes of the one before, epochs and positions only grow, a transaction is published once and
in commit order, and every object that an entry names is there with the size and the hash it names. (failures.md 3.5: I-2, I-3, I-6.)
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Change = tuple[str, str]
"""Table and kind of change, `i`, `u`, `d` or `t`."""


class Spool:
    """The manifest below `folder`, a pipeline's own prefix, as far as `read` has followed it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sha256 = ""
        self._tables: dict[str, str] = {}
        self.seq = 0
        self.epoch = 0
        self.through_lsn = 0
        self.states: dict[str, str] = {}
        self.copied: set[tuple[str, int]] = set()
        """Tables and the generations of theirs whose copy is in the log."""
        self.transactions: dict[int, Counter[Change]] = {}
        """Rows by kind of each published transaction, by its commit's end LSN."""

    def read(self) -> None:
        """Follows the log to its end. AssertionError names the entry that breaks a rule."""
        while (path := self._entry(self.seq + 1)).exists():
            self._take(path.read_bytes())
        last = max((int(path.stem) for path in self._folder.glob("manifest/*.json")), default=0)
        assert last <= self.seq + 1, f"manifest entry {self.seq + 1} is missing, though entry {last} exists"

    @property
    def newest_seq(self) -> int:
        """The number of the last entry there is now, read or not."""
        seq = self.seq
        while self._entry(seq + 1).exists():
            seq += 1
        return seq

    def _entry(self, seq: int) -> Path:
        return self._folder / "manifest" / f"{seq:016d}.json"

    def _take(self, data: bytes) -> None:
        entry = json.loads(data)
        number, through_lsn, epoch, kind = entry["seq"], entry["through_lsn"], entry["epoch"], entry["kind"]
        assert number == self.seq + 1, f"entry {self.seq + 1} calls itself {number}"
        assert entry["previous_sha256"] == self._sha256, f"entry {number} does not continue entry {self.seq}"
        assert epoch == self.epoch + (kind == "opened"), f"entry {number} of epoch {epoch} follows epoch {self.epoch}"
        assert through_lsn >= self.through_lsn, f"entry {number} goes back from {self.through_lsn} to {through_lsn}"
        body = entry[kind]
        if kind == "table":
            self._tables[body["table_id"]] = body["table_name"]
            self.states[body["table_name"]] = body["state"]
        elif kind == "copy":
            self._copy(body, number)
        elif kind == "changes":
            self._changes(body, number, through_lsn)
        self.seq, self.epoch, self.through_lsn, self._sha256 = number, epoch, through_lsn, hashlib.sha256(data).hexdigest()

    def _copy(self, body: dict[str, Any], number: int) -> None:
        generation = (self._tables[body["table_id"]], body["generation"])
        assert generation not in self.copied, f"entry {number} copies a generation for the second time"
        assert body["final"], f"entry {number} is a part of a copy"
        self.copied.add(generation)
        for segment in body["segments"]:
            self._object(segment, number)

    def _changes(self, body: dict[str, Any], number: int, through_lsn: int) -> None:
        previous = self.through_lsn
        for end_lsn in body["commits"]["end_lsn"]:
            assert previous < end_lsn <= through_lsn, f"entry {number}: the commit that ends at {end_lsn} was published before, or out of order"
            self.transactions[end_lsn] = Counter()
            previous = end_lsn
        aborted = {int(end_lsn): _spelled_out(steps) for end_lsn, steps in body["aborted_xids"].items()}
        for segment in body["segments"]:
            commit = segment["body"]
            gone = aborted[commit["end_lsn"]] if commit and commit["aborted_intervals"] else set()
            self._rows(segment, self._object(segment, number), number, gone)

    def _object(self, segment: dict[str, Any], number: int) -> Path:
        path: Path = self._folder / segment["key"]
        assert path.exists(), f"entry {number} names {segment['key']}, which is not there"
        data = path.read_bytes()
        assert len(data) == segment["bytes"], f"entry {number}: {segment['key']} has another size"
        assert hashlib.sha256(data).hexdigest() == segment["sha256"], f"entry {number}: {segment['key']} has another content"
        return path

    def _rows(self, segment: dict[str, Any], path: Path, number: int, gone: set[int]) -> None:
        columns = pq.read_table(path, columns=["_sluice_lsn", "_sluice_op", "_sluice_xid"])
        lsns, ops, xids = (column.to_pylist() for column in columns.columns)
        commit = segment["body"]
        name = self._tables[segment["table_id"]]
        for lsn, op, xid in zip(lsns, ops, xids, strict=True):
            if xid in gone:
                continue
            end_lsn = commit["end_lsn"] if commit else lsn
            assert end_lsn in self.transactions, f"entry {number} has rows of a transaction that nothing published"
            self.transactions[end_lsn][name, op] += 1


def _spelled_out(steps: list[int]) -> set[int]:
    """Every id of a list of distances: to the first of a run, to its last, to the first of the next."""
    xids: set[int] = set()
    for bound in range(0, len(steps), 2):
        first = sum(steps[: bound + 1])
        xids.update(range(first, first + steps[bound + 1] + 1))
    return xids
