"""Random histories of a table whose rows are identified by other columns again and again."""

import random
from contextlib import suppress

import psycopg

from tests.support.sources import Database

MADE = (
    "CREATE TABLE {t} (id int NOT NULL, code int NOT NULL, day date NOT NULL DEFAULT 'infinity', v text, big text)",
    "ALTER TABLE {t} ADD CONSTRAINT {t}_pkey PRIMARY KEY (id)",
    "CREATE UNIQUE INDEX {t}_code ON {t} (code)",
    "INSERT INTO {t} SELECT i, -i, date '2024-01-01' + i, 'v', repeat(md5(i::text), 300) FROM generate_series(1, 30) i",
)
_ROWS = (
    "INSERT INTO {t} SELECT i, -i, '2023-01-01'::date + i, 'n', 'b' FROM generate_series({n}, {n} + 3) i",
    "INSERT INTO {t} VALUES ({n}, {m}, 'infinity', 'single', repeat(md5('{n}'), 300))",
    "UPDATE {t} SET v = 'u{n}' WHERE id % 3 = {k}",
    "UPDATE {t} SET code = code + 5000 WHERE id % 7 = {k}",
    "UPDATE {t} SET id = id + 7000 WHERE code % 11 = {k}",
    "UPDATE {t} SET day = '-infinity' WHERE id % 13 = {k}",
    "UPDATE {t} SET big = repeat(md5('{n}'), 300) WHERE id % 5 = {k}",
    "UPDATE {t} SET id = id + 1",
    "DELETE FROM {t} WHERE id % 17 = {k}",
)
_KEYS = (
    "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
    "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (code)",
    "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (id)",
    "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (id, code)",
    "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (day, id)",
    "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY (id) DEFERRABLE",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
    "DROP INDEX {t}_code",
    "CREATE UNIQUE INDEX {t}_code ON {t} (code)",
    "TRUNCATE {t}",
)


def history(chance: random.Random, table: str, *, steps: int) -> list[str]:
    """Transactions, some of which the server will refuse."""

    def one(pool: tuple[str, ...]) -> str:
        n, m, k = chance.randrange(100, 4000), chance.randrange(-4000, 4000), chance.randrange(3)
        return chance.choice(pool).format(t=table, n=n, m=m, k=k)

    found = []
    for _ in range(steps):
        kind = chance.random()
        if kind < 0.5:
            found.append(one(_ROWS))
        elif kind < 0.8:
            found.append(one(_KEYS))
        else:
            inside = [one(_ROWS if chance.random() < 0.4 else _KEYS) for _ in range(chance.randrange(2, 4))]
            if chance.random() < 0.4:
                undone = one(_KEYS if chance.random() < 0.5 else _ROWS)
                inside.insert(chance.randrange(len(inside) + 1), f"SAVEPOINT s; {undone}; ROLLBACK TO s")
            found.append("; ".join(["BEGIN", *inside, "COMMIT"]))
    return found


def play(database: Database, transactions: list[str]) -> None:
    """Each of them, as far as the server allows it."""
    for transaction in transactions:
        with database.connect() as connection, suppress(psycopg.Error):
            connection.execute(transaction.encode())
