"""A second logical slot on the same WAL: what was committed, by the server's own account and
without any code of ours on the way.
"""

from collections import Counter
from collections.abc import Mapping

from sluice import lsn
from tests.support.oracle import Change
from tests.support.sources import Database

_OPTIONS = "'proto_version', '1', 'publication_names'"


class Witness:
    """Sees every transaction whose commit follows its creation. The database's own clean-up drops its slot."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[int, Counter[Change]] = {}
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
                    "SELECT substring(data FOR 256) FROM pg_logical_slot_get_binary_changes(%s, NULL, "
                    f"NULL, {_OPTIONS}, %s)"
                ).encode(),
                (self._slot, self._database.publication),
            ).fetchall()
        rows: Counter[Change] = Counter()
        for (head,) in heads:
            kind = chr(head[0])
            if kind == "C":
                self._seen[int.from_bytes(head[10:18], "big")] = rows
                rows = Counter()
            elif kind in "IUD":
                rows[tables[int.from_bytes(head[1:5], "big")], kind.lower()] += 1
            elif kind == "T":
                count = int.from_bytes(head[1:5], "big")
                rows.update(
                    (tables[int.from_bytes(head[at : at + 4], "big")], "t") for at in range(6, 6 + 4 * count, 4)
                )
        return self._seen

    def assert_saw(self, published: Mapping[int, Counter[Change]]) -> None:
        """`published` has each transaction once, with the same rows of each kind in each table, and nothing else."""
        seen = self.transactions()
        assert seen, "the witness saw nothing"
        assert not (lost := [end for end in seen if end not in published]), (
            f"{len(lost)} transactions are lost, the first ends at {lsn.show(lost[0])}"
        )
        assert not (made_up := [end for end in published if end not in seen]), (
            f"{len(made_up)} were never committed, one ends at {lsn.show(made_up[0])}"
        )
        wrong = [end for end in seen if seen[end] != published[end]]
        assert not wrong, (
            f"{len(wrong)} transactions have other rows, the first ends at {lsn.show(wrong[0])}: {seen[wrong[0]]}"
        )
