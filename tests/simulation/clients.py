"""What sessions of applications and administrators do in a history."""

from random import Random

from tests.simulation.catalog import Table
from tests.simulation.server import Server, Transaction

_IDENTITIES = ("d", "f", "n")


class Clients:
    """Every method is one event and says what happened."""

    def __init__(self, server: Server, *, two_phase: bool) -> None:
        self._server = server
        self._two_phase = two_phase
        self._gids = 0

    def set_up(self, random: Random) -> None:
        """Tables that are there before the slot is."""
        server = self._server
        for name in ("a", "b", "c")[: random.randrange(1, 4)]:
            one = server.begin()
            table = server.create(one, name, random)
            for _ in range(random.randrange(4)):
                server.change_row(one, table, random)
            server.publish(one, table, published=True)
            server.commit(one)

    def rows(self, random: Random) -> str:
        """A transaction of a few rows."""
        one = self._server.begin()
        said = self._some_rows(one, random)
        self._server.commit(one)
        return f"{one.xid}: {said}"

    def open(self, random: Random) -> str:
        """A transaction that stays open."""
        one = self._server.begin()
        return f"{one.xid} begins: {self._some_rows(one, random)}"

    @property
    def can_go_on(self) -> bool:
        return any(not one.gid for one in self._active)

    @property
    def _active(self) -> list[Transaction]:
        """Those whose sessions do not wait for the end of a COMMIT."""
        return [one for one in self._server.open.values() if one.hidden is None]

    @property
    def can_end(self) -> bool:
        return bool(self._active)

    def go_on(self, random: Random) -> str:
        """More of an open transaction."""
        server = self._server
        one = random.choice([one for one in self._active if not one.gid])
        choice = random.random()
        if choice < 0.2:
            server.savepoint(one)
            return f"{one.xid}: SAVEPOINT; {self._some_rows(one, random)}"
        if choice < 0.35 and one.savepoints:
            server.roll_back_to_savepoint(one)
            return f"{one.xid}: ROLLBACK TO SAVEPOINT"
        if choice < 0.45 and one.savepoints:
            server.release_savepoint(one)
            return f"{one.xid}: RELEASE SAVEPOINT"
        if choice < 0.6:
            return f"{one.xid}: {self._alter(one, random)}"
        return f"{one.xid}: {self._some_rows(one, random)}"

    def end(self, random: Random) -> str:
        """COMMIT, ROLLBACK or PREPARE TRANSACTION."""
        one = random.choice(self._active)
        return self._end(one, random)

    def end_all(self, random: Random) -> None:
        """Nothing is open any more."""
        self._server.standby_returns()
        while self._server.open:
            self._end(next(iter(self._server.open.values())), random)

    def _end(self, one: Transaction, random: Random) -> str:
        server, choice = self._server, random.random()
        if choice < 0.25:
            server.roll_back(one)
            return f"{one.xid}: ROLLBACK"
        if choice < 0.5 and not one.gid and random.random() < 0.8:
            self._gids += 1
            server.prepare(one, f"g{self._gids % 3}" if self._gid_free(f"g{self._gids % 3}") else f"h{self._gids}")
            return f"{one.xid}: PREPARE {one.gid}"
        server.commit(one)
        return f"{one.xid}: COMMIT"

    def _gid_free(self, gid: str) -> bool:
        return all(one.gid != gid for one in self._server.open.values())

    def shape(self, random: Random) -> str:
        """A transaction that changes a table, perhaps with rows before and behind it."""
        server = self._server
        one = server.begin()
        said = [self._some_rows(one, random)] if random.random() < 0.3 else []
        said.append(self._alter(one, random))
        if random.random() < 0.3:
            said.append(self._alter(one, random))
        if random.random() < 0.3:
            said.append(self._some_rows(one, random))
        if random.random() < 0.1:
            server.roll_back(one)
            said.append("ROLLBACK")
        else:
            server.commit(one)
        return f"{one.xid}: {'; '.join(filter(None, said))}"

    def publication(self, random: Random) -> str:
        """ALTER PUBLICATION ADD or DROP TABLE."""
        server = self._server
        one = server.begin()
        tables = server.publishable(one)
        said = ""
        if tables:
            table = random.choice(tables)
            server.publish(one, table, published=not table.membership)
            said = f"{'DROP' if table.membership else 'ADD'} TABLE {table.name} of the publication"
            if table.membership and random.random() < 0.3:
                found = server.table_of(one, table.oid)
                assert found is not None
                server.publish(one, found, published=True)
                said += " and ADD again"
        server.commit(one)
        return f"{one.xid}: {said}"

    def _some_rows(self, one: Transaction, random: Random) -> str:
        said = []
        for _ in range(random.randrange(1, 4)):
            tables = self._server.writable(one)
            if tables:
                said.append(self._server.change_row(one, random.choice(tables), random))
        return ", ".join(filter(None, said))

    def _alter(self, one: Transaction, random: Random) -> str:
        server = self._server
        choice = random.random()
        tables = server.alterable(one)
        if choice < 0.08 or not tables:
            names = server.names_free(one)
            if not names:
                return ""
            table = server.create(one, random.choice(names), random)
            if random.random() < 0.7:
                server.publish(one, table, published=True)
            return f"CREATE TABLE {table.name}"
        table = random.choice(tables)
        return f"{table.name}: {self._alter_table(one, table, choice, random)}"

    def _alter_table(self, one: Transaction, table: Table, choice: float, random: Random) -> str:
        server = self._server
        if choice < 0.3 and len(table.columns) < 6:
            return server.add_column(one, table, random)
        if choice < 0.45 and len(table.columns) > 2:
            return server.drop_column(one, table, random)
        if choice < 0.58 and len(table.columns) > 1:
            return server.rename_column(one, table, random)
        if choice < 0.68 and len(table.columns) > 1:
            return server.retype(one, table, random)
        others = [each for each in server.alterable(one) if each.oid != table.oid]
        other = random.choice(others) if others and random.random() < 0.3 else None
        if choice < 0.78:
            server.truncate(one, [table] if other is None else [table, other])
            return f"TRUNCATE {'' if other is None else f'with {other.name}'}"
        if choice < 0.86:
            identity = random.choice(_IDENTITIES)
            server.identity(one, table, identity)
            return f"REPLICA IDENTITY {identity}"
        if choice < 0.93:
            names = server.names_free(one)
            if not names:
                return ""
            name = random.choice(names)
            moved = server.rename(one, table, name)
            if other is None:
                return f"RENAME TO {name}"
            server.rename(one, other, table.name)
            server.rename(one, moved, other.name)
            return f"exchanges its name with {other.name}"
        server.drop(one, table)
        if random.random() < 0.6:
            after = server.create(one, table.name, random)
            server.publish(one, after, published=True)
            return "DROP TABLE, CREATE TABLE"
        return "DROP TABLE"
