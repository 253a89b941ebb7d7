"""One table of the source at one snapshot, hashed by ranges of its keys on the server.

Invariant: what is read is what the snapshot sees, in statements over a bounded range of the
table's blocks, with a pause after each that keeps to the load that was allowed. Ordinary reads: no
lock but ACCESS SHARE. (PostgreSQL: System Columns, ctid; TID range scans.)
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.chunks import BLOCK_BYTES
from sluice.contract.row_form import PROBES, Row, Sums
from sluice.contract.schema import RuleKind, TableSchema
from sluice.errors import SourceUnavailable, UnsupportedChange
from sluice.ingest.snapshot.reader import table_at
from sluice.source.catalog import Catalog
from sluice.source.row_hashes import RowHashes, probe
from sluice.source.rule_sql import with_hash_keys
from sluice.source.sessions import Connection, KnownSource, open_query, translated

BLOCKS_AT_ONCE = 8192
"""64 MiB of an ordinary table."""
_HASHES = 1 << 64


@dataclass(frozen=True, slots=True)
class Load:
    """How much of the time of one connection may be spent in statements (above 0, at most 1), and
    what says that no more is wanted.
    """

    share: float = 1.0
    stopped: Callable[[], bool] = lambda: False

    def pause(self, took_seconds: float) -> None:
        """After a statement. Raises SourceUnavailable when stopped."""
        until = time.monotonic() + took_seconds * (1 / self.share - 1)
        while not self.stopped():
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.2))
        raise SourceUnavailable("the comparison was stopped")


class SourceTable:
    """The table while its transaction is open; made by `opened`."""

    def __init__(self, connection: Connection, hashes: RowHashes, load: Load) -> None:
        self._connection = connection
        self._hashes = hashes
        self._load = load
        self._blocks: list[tuple[int, int] | None] = self._cut()

    def sums(self) -> Sums:
        """Of every range that has rows."""
        sums: Sums = {}
        for blocks in self._blocks:
            for number, rows, total in self._ask(self._hashes.sums(blocks)):
                before = sums.get(number, (0, 0))
                sums[number] = (before[0] + rows, (before[1] + int(total)) % _HASHES)
        return sums

    def rows(self, ranges: Sequence[int]) -> Iterator[Row]:
        """The rows in `ranges`."""
        for blocks in self._blocks:
            for key_hash, row_hash, *key in self._ask(self._hashes.rows(blocks, ranges)):
                yield Row(key_hash, row_hash, tuple(key))

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        began = time.monotonic()
        with translated(f"hashing {self._hashes.facts.qualified_name}"):
            found = self._connection.execute(statement.encode()).fetchall()
        self._load.pause(time.monotonic() - began)
        return found

    def _cut(self) -> list[tuple[int, int] | None]:
        """Ranges of blocks, the last one open: a partitioned table has no blocks of its own, and a
        table of another kind than heap may not number its rows so.
        """
        facts = self._hashes.facts
        with translated(f"measuring {facts.qualified_name}"):
            found = self._connection.execute(
                "SELECT pg_catalog.pg_relation_size(c.oid), a.amname = 'heap' FROM pg_catalog.pg_class c "
                "JOIN pg_catalog.pg_am a ON a.oid = c.relam WHERE c.oid = %s AND c.relkind = 'r'",
                (facts.oid,),
            ).fetchone()
        if found is None or not found[1]:
            return [None]
        starts = list(range(0, max(1, found[0] // BLOCK_BYTES), BLOCKS_AT_ONCE))
        return [(start, end) for start, end in zip(starts, [*starts[1:], 0], strict=True)]


@contextmanager
def opened(
    options: KnownSource,
    *,
    schema: TableSchema,
    facts: TableFacts,
    snapshot: str,
    form: "Form",
    bits: int,
    load: Load,
) -> Iterator[SourceTable]:
    """The table as of `snapshot`. Raises what `table_at` raises, UnsupportedChange when it no longer
    has the columns of `schema`.
    """
    keyed = with_hash_keys(options, schema.columns)
    with table_at(keyed, facts=facts, snapshot=snapshot) as connection:
        _require_characters(connection, schema)
        row_filter = Catalog(connection).row_filter(facts)
        hashes = RowHashes(schema, facts, form.seed, bits, form.as_hex, row_filter)
        yield SourceTable(connection, hashes, load)


def _require_characters(connection: Connection, schema: TableSchema) -> None:
    """Raises UnsupportedChange where the server counts bytes and a rule counts characters."""
    if not any(column.rule is not None and column.rule.kind is RuleKind.TRUNCATE for column in schema.columns):
        return
    with translated("asking for the encoding"):
        found = connection.execute("SELECT pg_catalog.current_setting('server_encoding')").fetchone()
    if found is not None and found[0] == "SQL_ASCII":
        raise UnsupportedChange(
            f"{schema.qualified_name} has a rule that truncates, and a server with SQL_ASCII counts bytes"
        )


@dataclass(frozen=True, slots=True)
class Form:
    """What the hashes of one comparison depend on, and `probes`, the server's hashes of PROBES."""

    seed: int
    as_hex: bool
    probes: tuple[int, ...]

    @classmethod
    def of(cls, options: KnownSource, seed: int) -> "Form":
        """As the server's encoding wants it. Raises SourceError."""
        with closing(open_query(options)) as connection, translated("asking how the server hashes"):
            encoding = connection.execute("SELECT pg_catalog.current_setting('server_encoding')").fetchone()
            as_hex = encoding is not None and encoding[0] != "UTF8"
            probes = [text.encode().hex() for text in PROBES] if as_hex else list(PROBES)
            found = connection.execute(probe(seed).encode(), (probes,)).fetchall()
        return cls(seed, as_hex, tuple(row[0] for row in found))
