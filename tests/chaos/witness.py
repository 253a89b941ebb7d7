"""A second logical slot on the same WAL: what was committed, by the server's own account and
without any code of ours on the way.
"""

from collections import Counter

from tests.support.oracle import Change
from tests.support.sources import Database

_OPTIONS = "'proto_version', '1', 'publication_names'"


class Witness:
    """Sees every transaction whose commit follows its creation. Reading it consumes nothing; the
    database's own clean-up drops its slot.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._slot = f"{database.slot}_witness"
        database.execute(f"SELECT pg_create_logical_replication_slot('{self._slot}', 'pgoutput')")

    def transactions(self) -> dict[int, Counter[Change]]:
        """Rows by kind of each transaction, by its commit's end LSN, in commit order."""
        with self._database.connect() as connection:
            tables: dict[int, str] = dict(
                connection.execute("SELECT oid::int, relname::text FROM pg_class WHERE relkind = 'r'").fetchall()
            )
            heads = connection.execute(
                (
                    "SELECT substring(data FOR 256) FROM pg_logical_slot_peek_binary_changes(%s, NULL, "
                    f"NULL, {_OPTIONS}, %s)"
                ).encode(),
                (self._slot, self._database.publication),
            ).fetchall()
        found: dict[int, Counter[Change]] = {}
        rows: Counter[Change] = Counter()
        for (head,) in heads:
            kind = chr(head[0])
            if kind == "C":
                found[int.from_bytes(head[10:18], "big")] = rows
                rows = Counter()
            elif kind in "IUD":
                rows[tables[int.from_bytes(head[1:5], "big")], kind.lower()] += 1
            elif kind == "T":
                count = int.from_bytes(head[1:5], "big")
                rows.update(
                    (tables[int.from_bytes(head[at : at + 4], "big")], "t") for at in range(6, 6 + 4 * count, 4)
                )
        return found
