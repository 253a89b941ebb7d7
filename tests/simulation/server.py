"""A small PostgreSQL: sessions with transactions and savepoints, tables that change their shape, one publication,
and a log of what happened in the order of LSNs.

What it keeps of the real one: a transaction sees and changes nothing that another one has locked (rows, and
whole tables against changes of their shape); what it did is there for others from its commit record on, rows
and catalog alike; the log has its records where they were made, and what became of it where that was decided.
`history` is the oracle: each table with its rows from each commit on. What walsender makes of the log is in
`walsender`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from tests.simulation.catalog import BLOCK, INT4, INT8, KEY, TEXT, VARCHAR, Column, Row, Table, value_of

RECORD_BYTES = 16
COMMIT_BYTES = 48
_FIRST_OID = 16400
_NAMES = ("a", "b", "c", "d")
_LARGE = "L"
"""Values that begin so are stored out of line."""

Rows = dict[str, Row]
"""The rows of one table by the text of their key."""
Changed = dict[str, Row | None]
Compute = Callable[[Row, str | None], str | None]
"""The value of a column after a rewrite, from the row and the value before."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log, from `lsn` to `end_lsn`. `xid` is the transaction, `subxid` the subtransaction
    that wrote it. `kind`: row, truncate, shape, subabort, commit, abort, prepare, commit_prepared,
    rollback_prepared, message.
    """

    lsn: int
    end_lsn: int
    xid: int
    kind: str
    subxid: int = 0
    table: Table | None = None
    op: str = ""
    old: Row | None = None
    new: Row | None = None
    tables: tuple[Table, ...] = ()
    xids: tuple[int, ...] = ()
    gid: str = ""


@dataclass(slots=True)
class _Savepoint:
    xid: int
    rows: dict[int, Changed]
    whole: set[int]
    catalog: dict[int, Table | None]
    subxids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Transaction:
    """One that has not ended. `rows` has what it changed in each table, None for a row that is gone; of those in
    `whole` all rows there are. `catalog` has the tables that it changed as it sees them.
    """

    xid: int
    rows: dict[int, Changed] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    catalog: dict[int, Table | None] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    reshaped: set[int] = field(default_factory=set)
    keys: set[tuple[int, str]] = field(default_factory=set)
    savepoints: list[_Savepoint] = field(default_factory=list)
    gid: str = ""
    prepare_end_lsn: int = 0
    hidden: dict[int, Table | None] | None = None
    """Once its commit record is written and nobody sees it yet: the tables that it changed, as they are seen."""

    @property
    def subxid(self) -> int:
        return self.savepoints[-1].xid if self.savepoints else self.xid


class Server:
    """`now` is the end of the log."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.now = 0x1000
        self.tables: dict[int, Table] = {}
        self.rows: dict[int, Rows] = {}
        self.history: dict[int, list[tuple[int, Table | None, Rows]]] = {}
        self.open: dict[int, Transaction] = {}
        self.standby_is_away = False
        """Whether commits wait for a standby, with their locks; half of the sessions do not."""
        self.signals = False
        """Whether each command that alters a table says so in the log."""
        self._xid = 700
        self._oid = _FIRST_OID
        self._number = 0

    # what sessions do

    def begin(self) -> Transaction:
        self._xid += 1
        self.open[self._xid] = Transaction(self._xid)
        return self.open[self._xid]

    def savepoint(self, one: Transaction) -> None:
        self._xid += 1
        rows = {oid: dict(rows) for oid, rows in one.rows.items()}
        saved = _Savepoint(self._xid, rows, set(one.whole), dict(one.catalog))
        one.savepoints.append(saved)

    def roll_back_to_savepoint(self, one: Transaction) -> None:
        """To the newest one, which is gone afterwards."""
        saved = one.savepoints.pop()
        one.rows, one.whole, one.catalog = saved.rows, saved.whole, saved.catalog
        self._write(one, "subabort", xids=(saved.xid, *saved.subxids))

    def release_savepoint(self, one: Transaction) -> None:
        saved = one.savepoints.pop()
        # Its subtransaction lives on as a child of the one around it.
        if one.savepoints:
            one.savepoints[-1].subxids += [saved.xid, *saved.subxids]

    def commit(self, one: Transaction) -> int:
        """Returns where its commit record ends."""
        while one.savepoints:
            self.release_savepoint(one)
        record = self._write(one, "commit_prepared" if one.gid else "commit", size=COMMIT_BYTES, gid=one.gid)
        waits = self.standby_is_away and one.xid % 2 == 0
        one.hidden = {oid: self.tables.get(oid) for oid in one.catalog} if waits else None
        for oid in {*one.rows, *one.catalog}:
            table = one.catalog.get(oid, self.tables.get(oid))
            if table is None:
                self.tables.pop(oid, None)
                self.rows.pop(oid, None)
                self.history.setdefault(oid, []).append((record.end_lsn, None, {}))
                continue
            self.tables[oid] = table
            self.rows[oid] = self._rows_of(one, oid)
            self.history.setdefault(oid, []).append((record.end_lsn, table, self.rows[oid]))
        if not waits:
            del self.open[one.xid]
        return record.end_lsn

    @property
    def unseen(self) -> list[Transaction]:
        """Those that have committed, and nobody sees it yet; in the order of their commit records."""
        return [one for one in self.open.values() if one.hidden is not None]

    @property
    def seen_tables(self) -> dict[int, Table]:
        """As a look at the catalog sees them."""
        seen: dict[int, Table | None] = dict(self.tables)
        for one in self.unseen:  # what one has changed no other one can change meanwhile
            seen.update(one.hidden or {})
        return {oid: table for oid, table in seen.items() if table is not None}

    def standby_returns(self) -> None:
        """Who waits for it has committed for everybody."""
        self.standby_is_away = False
        for one in self.unseen:
            del self.open[one.xid]

    def roll_back(self, one: Transaction) -> None:
        self._write(one, "rollback_prepared" if one.gid else "abort", size=COMMIT_BYTES, gid=one.gid)
        del self.open[one.xid]

    def prepare(self, one: Transaction, gid: str) -> None:
        while one.savepoints:
            self.release_savepoint(one)
        one.gid = gid
        one.prepare_end_lsn = self._write(one, "prepare", size=COMMIT_BYTES, gid=gid).end_lsn

    # rows

    def change_row(self, one: Transaction, table: Table, random: Random) -> str:
        """An insert, an update or a delete of a row that nobody else has locked; says what was done."""
        rows = self._rows_of(one, table.oid)
        locked = {
            key for other in self.open.values() if other is not one for oid, key in other.keys if oid == table.oid
        }
        there = [key for key in rows if key not in locked]
        choice = random.random()
        if not there or choice < 0.45:
            free = [str(number) for number in range(1, 13) if str(number) not in rows and str(number) not in locked]
            if not free:
                return ""
            key = random.choice(free)
            return self._put(one, table, None, self._new_row(table, key, random))
        if table.identity == "n":
            return ""
        key = random.choice(there)
        if choice < 0.85:
            return self._update(one, table, rows[key], locked, random)
        return self._put(one, table, rows[key], None)

    def _update(self, one: Transaction, table: Table, row: Row, locked: set[str], random: Random) -> str:
        rows = self._rows_of(one, table.oid)
        changed = {**row, BLOCK: random.randrange(4)}
        others = [column for column in table.columns if column.attnum != KEY]
        for column in others:
            if random.random() < 0.5:
                changed[column.attnum] = self._value(column, random)
        if random.random() < 0.15:
            free = [str(number) for number in range(1, 13) if str(number) not in rows and str(number) not in locked]
            changed[KEY] = random.choice(free) if free else row[KEY]
        return self._put(one, table, row, changed)

    def _put(self, one: Transaction, table: Table, old: Row | None, new: Row | None) -> str:
        rows = one.rows.setdefault(table.oid, {})
        if old is not None:
            rows[str(old[KEY])] = None
            one.keys.add((table.oid, str(old[KEY])))
        if new is not None:
            rows[str(new[KEY])] = new
            one.keys.add((table.oid, str(new[KEY])))
        one.written.add(table.oid)
        op = "I" if old is None else "D" if new is None else "U"
        self._write(one, "row", table=table, op=op, old=old, new=new)
        shown = "" if new is None else f" {table.read(new)}"
        return f"{op} {table.name}{'' if old is None else f' {old[KEY]}'}{shown}"

    def _new_row(self, table: Table, key: str, random: Random) -> Row:
        row: dict[int, str | int | None] = {BLOCK: random.randrange(4), KEY: key}
        for column in table.columns:
            if column.attnum != KEY:
                row[column.attnum] = self._value(column, random)
        return row

    def _value(self, column: Column, random: Random) -> str | None:
        self._number += 1
        if random.random() < 0.1:
            return None
        if column.type_oid in (INT4, INT8):
            return str(self._number)
        return f"{_LARGE if column.type_oid == TEXT and random.random() < 0.3 else 'v'}{self._number}"

    def truncate(self, one: Transaction, tables: list[Table]) -> None:
        after = []
        for table in tables:
            self._oid += 1
            # No event trigger hears of it.
            one.reshaped.add(table.oid)
            truncated = replace(table, relfilenode=self._oid, facts_seen={})
            after.append(self._alter(one, truncated, is_heard=False))
            one.rows[table.oid] = {}
            one.whole.add(table.oid)
        self._write(one, "truncate", tables=tuple(after))

    # shapes

    def create(self, one: Transaction, name: str, random: Random) -> Table:
        self._oid += 3
        columns = [Column("id", KEY, INT4, xmin=one.subxid)]
        columns += [Column("n", 2, INT4, xmin=one.subxid), Column("t", 3, TEXT, xmin=one.subxid)]
        columns += [Column("c", 4, VARCHAR, 14, xmin=one.subxid)] if random.random() < 0.5 else []
        table = Table(
            self._oid, name, tuple(columns), columns[-1].attnum, relfilenode=self._oid, toast=self._oid + 1,
            primary_key=self._oid + 2,
        )  # fmt: skip
        one.catalog[table.oid], one.rows[table.oid] = table, {}
        one.whole.add(table.oid)
        one.written.add(table.oid)
        one.reshaped.add(table.oid)
        return table

    def drop(self, one: Transaction, table: Table) -> None:
        self._reshape(one, table)
        one.catalog[table.oid] = None
        one.rows.pop(table.oid, None)

    def publish(self, one: Transaction, table: Table, *, published: bool) -> None:
        """ADD TABLE or DROP TABLE of the publication: the table itself stays as it is, and is not locked."""
        self._oid += 1
        self._alter(one, replace(table, membership=f"entry {self._oid}" if published else "", facts_seen={}))

    def rename(self, one: Transaction, table: Table, name: str) -> Table:
        return self._reshape(one, replace(table, name=name, facts_seen={}))

    def identity(self, one: Transaction, table: Table, identity: str) -> None:
        self._reshape(one, replace(table, identity=identity, facts_seen={}))

    def add_column(self, one: Transaction, table: Table, random: Random) -> str:
        attnum = table.attributes + 1
        # A name that was used before is as good as another one.
        taken = {column.name for column in table.columns}
        name = random.choice([each for each in ("n", "t", "c", "x", "y", "z") if each not in taken])
        way = random.choice(("plain", "plain", "constant", "volatile"))
        type_oid = random.choice((INT4, TEXT))
        column = Column(
            name, attnum, type_oid, xmin=one.subxid, has_default=way != "plain",
            missing="7" if way == "constant" else None,
        )  # fmt: skip
        after = replace(table, columns=(*table.columns, column), attributes=attnum, facts_seen={})
        if way == "volatile":
            after = self._rewritten(one, after, {attnum: lambda row, _: f"{row[KEY]}0"})
        self._reshape(one, after)
        return f"ADD {name} ({way}, attnum {attnum})"

    def drop_column(self, one: Transaction, table: Table, random: Random) -> str:
        column = random.choice(table.columns[1:])
        kept = tuple(each for each in table.columns if each is not column)
        self._reshape(one, replace(table, columns=kept, facts_seen={}))
        return f"DROP {column.name}"

    def rename_column(self, one: Transaction, table: Table, random: Random) -> str:
        column = random.choice(table.columns[1:])
        taken = {each.name for each in table.columns}
        name = random.choice([each for each in ("n", "t", "c", "x", "y", "z") if each not in taken])
        self._reshape(one, self._with(table, replace(column, name=name, xmin=one.subxid)))
        return f"RENAME {column.name} TO {name}"

    def retype(self, one: Transaction, table: Table, random: Random) -> str:
        column = random.choice(table.columns[1:])
        if column.type_oid == VARCHAR:
            self._reshape(one, self._with(table, replace(column, typmod=column.typmod + 10, xmin=one.subxid)))
            return f"ALTER {column.name} TYPE varchar({column.typmod + 6})"
        type_oid, typmod = {INT4: (INT8, -1), INT8: (TEXT, -1), TEXT: (VARCHAR, 34)}[column.type_oid]
        after = self._with(table, replace(column, type_oid=type_oid, typmod=typmod, xmin=one.subxid))
        computes = random.random() < 0.3
        values = {column.attnum: _computed} if computes else {}
        self._reshape(one, self._rewritten(one, after, values))
        return f"ALTER {column.name} TYPE, the table is rewritten{' with other values' if computes else ''}"

    @staticmethod
    def _with(table: Table, column: Column) -> Table:
        columns = tuple(column if each.attnum == column.attnum else each for each in table.columns)
        return replace(table, columns=columns, facts_seen={})

    def _rewritten(self, one: Transaction, table: Table, values: Mapping[int, Compute]) -> Table:
        """The table in another storage: every row has its values itself. `values` computes some anew."""
        self._oid += 2
        rows: Rows = {}
        for key, row in self._rows_of(one, table.oid).items():
            whole: dict[int, str | int | None] = {BLOCK: row[BLOCK]}
            for column in table.columns:
                found = value_of(row, column)
                compute = values.get(column.attnum)
                whole[column.attnum] = compute(row, found) if compute is not None else found
            rows[key] = whole
        one.rows[table.oid] = dict(rows)
        one.whole.add(table.oid)
        columns = tuple(replace(column, missing=None) for column in table.columns)
        return replace(table, columns=columns, relfilenode=self._oid, toast=self._oid + 1, facts_seen={})

    def _reshape(self, one: Transaction, after: Table) -> Table:
        one.reshaped.add(after.oid)
        return self._alter(one, after)

    def _alter(self, one: Transaction, after: Table, *, is_heard: bool = True) -> Table:
        one.catalog[after.oid] = after
        self._write(one, "shape", table=after)
        if is_heard and self.signals:
            self._write(one, "message", table=after)
        return after

    # what is there

    def table_of(self, one: Transaction, oid: int) -> Table | None:
        """The table as the transaction sees it."""
        return one.catalog[oid] if oid in one.catalog else self.tables.get(oid)

    def visible(self, one: Transaction) -> Iterator[Table]:
        for oid in sorted({*self.tables, *one.catalog}):
            table = self.table_of(one, oid)
            if table is not None:
                yield table

    def writable(self, one: Transaction) -> list[Table]:
        """Tables whose rows it may change now."""
        held = {oid for other in self.open.values() if other is not one for oid in other.reshaped}
        return [table for table in self.visible(one) if table.oid not in held]

    def alterable(self, one: Transaction) -> list[Table]:
        """Tables whose shape it may change now."""
        held = {oid for other in self.open.values() if other is not one for oid in other.catalog.keys() | other.written}
        return [table for table in self.visible(one) if table.oid not in held]

    def publishable(self, one: Transaction) -> list[Table]:
        """Tables that it may bring into the publication or take out of it now: others may write their rows."""
        held = {oid for other in self.open.values() if other is not one for oid in other.catalog}
        return [table for table in self.visible(one) if table.oid not in held]

    def names_free(self, one: Transaction) -> list[str]:
        taken = {table.name for table in self.tables.values()}
        taken |= {table.name for other in self.open.values() for table in other.catalog.values() if table is not None}
        return [name for name in _NAMES if name not in taken]

    def is_locked(self, oid: int) -> bool:
        """Whether somebody is about to change the shape of the table."""
        return any(oid in one.reshaped for one in self.open.values())

    def at(self, oid: int, lsn: int) -> tuple[Table | None, Rows]:
        """The table as of `lsn`."""
        table: Table | None = None
        rows: Rows = {}
        for end_lsn, then, its_rows in self.history.get(oid, ()):
            if end_lsn > lsn:
                break
            table, rows = then, its_rows
        return table, rows

    def _rows_of(self, one: Transaction, oid: int) -> Rows:
        before = {} if oid in one.whole else self.rows.get(oid, {})
        changed = one.rows.get(oid)
        if not changed:
            return before
        merged: dict[str, Row | None] = {**before, **changed}
        return {key: row for key, row in merged.items() if row is not None}

    def _write(
        self,
        one: Transaction,
        kind: str,
        *,
        size: int = RECORD_BYTES,
        table: Table | None = None,
        op: str = "",
        old: Row | None = None,
        new: Row | None = None,
        tables: tuple[Table, ...] = (),
        xids: tuple[int, ...] = (),
        gid: str = "",
    ) -> Record:
        lsn, self.now = self.now, self.now + size
        record = Record(lsn, self.now, one.xid, kind, one.subxid, table, op, old, new, tables, xids, gid)
        self.log.append(record)
        return record


def _computed(_row: Row, value: str | None) -> str | None:
    return None if value is None else f"{value}1"


def is_large(value: str | None) -> bool:
    """Whether an update that leaves the value as it is sends it."""
    return value is not None and value.startswith(_LARGE)
