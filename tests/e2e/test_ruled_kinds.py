"""Every kind of lake table under every column rule, on an object store, through kill -9: what a table was at each
commit is what its history and its changelog say that it was, and what the rules keep out is in no object, log or
temporary file. A table with a hashed key and large values, and a partitioned one that is published as its root
with whole old rows.
"""

import hmac
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sluice.errors import ObjectMissing
from sluice.manifest.newest_record import newest_log
from sluice.store.opening import open_store
from tests.e2e.orders import as_of, states_of
from tests.support import canary
from tests.support.column_rules import HIDDEN
from tests.support.extent import slow
from tests.support.pipeline import QUICK_JAVA, new_pipeline, wait_until
from tests.support.source_setup import server_major
from tests.support.sources import Bucket, Database
from tools.local.sluice import Pipeline, SluiceProcess

KEY = b"a key of some more than 16 bytes"
KINDS = 4
"""A mirror, one with soft deletes, a history and a changelog."""
COLUMNS = "code text NOT NULL, region text NOT NULL, email text, phone text, notes text, card text, v int, big text"
NAMES = ("code", "region", "email", "phone", "notes", "v", "big")
RULES = {
    "code": {"hash": "hmac-sha256"},
    "email": {"hash": "hmac-sha256"},
    "phone": {"mask": "***"},
    "notes": {"truncate": 5},
    "card": "exclude",
}
TRUNCATE = "TRUNCATE {t}"
LATER_SECONDS = 900.0
Row = tuple[Any, ...]


def hashed(text: str | None) -> str | None:
    return text if text is None else hmac.new(KEY, text.encode(), "sha256").hexdigest()


def under_rules(row: Row) -> Row:
    code, region, email, phone, notes, v, big = row
    return hashed(code), region, hashed(email), phone and "***", notes if notes is None else notes[:5], v, big


@dataclass
class Story:
    """Two tables with the same columns, and their rows under the rules at each commit, by LSN."""

    database: Database
    choice: random.Random
    at: dict[str, dict[int, set[Row]]] = field(default_factory=lambda: {"people": {}, "parted": {}})

    def create(self) -> None:
        self.database.execute(
            f"CREATE TABLE people ({COLUMNS}, PRIMARY KEY (code))",
            f"CREATE TABLE parted ({COLUMNS}, PRIMARY KEY (code, region)) PARTITION BY LIST (region)",
            "CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a')",
            "CREATE TABLE parted_b (big text, v int, card text, spare int, notes text, phone text, email text, "
            "region text NOT NULL, code text NOT NULL, PRIMARY KEY (code, region))",
            "ALTER TABLE parted_b DROP spare",
            "ALTER TABLE parted ATTACH PARTITION parted_b FOR VALUES IN ('b')",
            *(
                f"ALTER TABLE {table} ALTER notes SET STORAGE EXTERNAL, ALTER card SET STORAGE EXTERNAL, "
                "ALTER big SET STORAGE EXTERNAL, ALTER email SET STORAGE EXTERNAL"
                for table in ("people", "parted_a", "parted_b")
            ),
            # Old rows come whole.
            *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in ("parted", "parted_a", "parted_b")),
            *(f"INSERT INTO {table} SELECT {self._values('i')} FROM generate_series(1, 15) i" for table in self.at),
        )

    def _values(self, number: str) -> str:
        large = f"'{HIDDEN}' || repeat('x', 9000) || {number}"
        return (
            f"'{HIDDEN} k' || {number}, CASE WHEN {number} % 2 = 0 THEN 'a' ELSE 'b' END, {large}, '{HIDDEN}', "
            f"'äö😀ab' || {large}, {large}, {number}, repeat('b', 9000) || {number}"
        )

    def commit(self, *statements: str) -> None:
        """The same of both tables in one transaction."""
        with self.database.connect() as connection, connection.transaction():
            for statement in statements:
                for table in self.at:
                    # In the catalog, a root that is emptied looks like one of its partitions: it is read again.
                    text = "DELETE FROM {t}" if (statement, table) == (TRUNCATE, "parted") else statement
                    connection.execute(text.replace("{t}", table).encode())
        lsn = self.database.lsn()
        for table, recorded in self.at.items():
            rows = self.database.all(f"SELECT {', '.join(NAMES)} FROM {table}")
            recorded[lsn] = {under_rules(one) for one in rows}
            assert len(recorded[lsn]) == len(rows)

    def work(self, transactions: int) -> None:
        for _ in range(transactions):
            self.commit(*(self._statement() for _ in range(self.choice.randint(1, 4))))

    def _statement(self) -> str:
        key, other, number = self.choice.randrange(25), self.choice.randrange(25), self.choice.randrange(5)
        code, another = f"'{HIDDEN} k{key}'", f"'{HIDDEN} k{other}'"
        absent = f"AND NOT EXISTS (SELECT FROM {{t}} WHERE code = {another})"
        return self.choice.choices(
            (
                f"INSERT INTO {{t}} SELECT {self._values(str(key))} ON CONFLICT DO NOTHING",
                f"UPDATE {{t}} SET v = v + 1 WHERE code IN ({code}, {another})",
                f"UPDATE {{t}} SET email = '{HIDDEN} {number}', notes = NULL WHERE code = {code}",
                f"UPDATE {{t}} SET card = '{HIDDEN} other', phone = NULL WHERE code = {code}",
                f"UPDATE {{t}} SET code = {another} WHERE code = {code} {absent}",
                f"UPDATE {{t}} SET region = CASE region WHEN 'a' THEN 'b' ELSE 'a' END WHERE code = {code}",
                f"DELETE FROM {{t}} WHERE code = {another}",
                "SAVEPOINT s; DELETE FROM {t}; ROLLBACK TO s",
                TRUNCATE,
            ),
            weights=(6, 5, 3, 2, 4, 3, 2, 1, 0.3),
        )[0]


@pytest.fixture
def story(database: Database) -> Story:
    made = Story(database, random.Random(27))
    made.create()
    return made


@slow
@pytest.mark.timeout(2400)
def test_all_kinds_under_all_rules_say_what_was_at_each_commit_and_nothing_hidden(
    story: Story, moto: Bucket, tmp_path: Path
) -> None:
    database = story.database
    (tmp_path / "key").write_bytes(KEY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    rules = {
        name: {**rule, "key_file": str(tmp_path / "key")} if isinstance(rule, dict) and "hash" in rule else rule
        for name, rule in RULES.items()
    }
    tables = {
        f"public.{table}": {
            "columns": rules,
            "new_columns": "exclude",
            "targets": [
                {"kind": "mirror"},
                {"kind": "mirror", "name": f"{table}_soft", "deletes": "soft"},
                *({"kind": kind, "name": f"{table}_{kind}"} for kind in ("history", "changelog")),
            ],
        }
        for table in story.at
    }
    options = moto.server.options()
    pipeline = new_pipeline(
        database,
        tmp_path / "pipeline",
        spool={"uri": f"{moto.uri}/spool", "options": options, "max_delay": "200ms"},
        lake={"uri": f"{moto.uri}/lake", "options": options},
        apply={"poll": "200ms", "driver_memory": "1GiB", "conf": QUICK_JAVA},
        tables=tables,
    )
    environment = {"TMPDIR": str(temporary)}
    # Bodies of open transactions are stored, until the first kill.
    immediate = server_major(database) >= 16
    if immediate:
        database.execute(f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate")
    with pipeline.start("up", environment=environment) as process:
        reach(pipeline, options, 0, process)
        story.commit()
        story.work(15)
        process.kill()
    story.work(10)
    if immediate:
        database.execute(f"ALTER DATABASE {database.name} RESET debug_logical_replication_streaming")
    with pipeline.start("up", environment=environment) as process:
        story.commit(f"ALTER TABLE {{t}} ADD secret text DEFAULT '{HIDDEN} default'", "UPDATE {t} SET v = v + 1")
        story.commit(f"UPDATE {{t}} SET secret = '{HIDDEN} set', v = v + 1")
        story.work(10)
        reach(pipeline, options, max(story.at["people"]), process)
        story.work(5)
        process.kill()
    story.commit(TRUNCATE)
    story.work(5)
    with pipeline.start("up", environment=environment) as process:
        story.work(5)
        reach(pipeline, options, max(story.at["people"]), process)
        verified = pipeline.run("verify", environment=environment, timeout=LATER_SECONDS)
    assert verified.returncode == 0, verified.stderr
    assert verified.stdout.count(": equal") == 6, verified.stdout
    for table in story.at:
        assert_as_recorded(story, table, lambda name: rows_of(f"{pipeline.lake_uri}/public/{name}", options))
    fetched = tmp_path / "fetched"
    for uri in (pipeline.spool_uri, pipeline.lake_uri):
        fetch(uri, options, fetched / uri.rpartition("/")[2])
    assert canary.in_stored(fetched, "äö😀ab"), "the scan reads what is compressed"
    for folder in (fetched, temporary):
        assert canary.in_stored(folder, HIDDEN) == []
        assert canary.in_stored(folder, KEY.decode()) == []
    shown = "".join(one.read_text(errors="replace") for one in pipeline.directory.glob("*.log"))
    assert "starting Spark" in shown
    assert HIDDEN not in shown


def reach(pipeline: Pipeline, options: dict[str, str], lsn: int, process: SluiceProcess) -> None:
    """Returns when all lake tables are live and complete through `lsn`."""
    store = open_store(pipeline.spool_uri, prefix="t/", options=options)

    def there() -> bool:
        log = newest_log(store).read()
        rows = [row for row in log.tables.values() if row.schema_name == "public"] if log is not None else []
        assert [(row.title, row.reason) for row in rows if row.state in ("stale", "quarantined")] == []
        return len(rows) == 2 * KINDS and all(
            (row.state, row.complete_through_lsn >= lsn) == ("live", True) for row in rows
        )

    wait_until(there, what="the lake is complete", processes=(process,), timeout=LATER_SECONDS)


def rows_of(path: str, options: dict[str, str]) -> list[dict[str, Any]]:
    lake = DeltaTable(path, storage_options=options)
    found: list[dict[str, Any]] = pa.table(
        QueryBuilder().register("lake", lake).execute("select * from lake").read_all()
    ).to_pylist()
    return found


def assert_as_recorded(story: Story, table: str, read: Callable[[str], list[dict[str, Any]]]) -> None:
    recorded = story.at[table]
    newest = recorded[max(recorded)]
    for name in (table, f"{table}_soft"):
        rows = [row for row in read(name) if row.get("_sluice_deleted_at") is None]
        assert "card" not in rows[0]
        assert "secret" not in rows[0]
        assert sorted(map(values, rows)) == sorted(newest)
    versions = read(f"{table}_history")
    for lsn, wanted in recorded.items():
        found = list(map(values, as_of(versions, lsn)))
        assert (len(found), set(found)) == (len(wanted), wanted), f"{table} as of {lsn}"
    columns = [one.split()[0] for one in COLUMNS.split(", ")]

    def changed(old: dict[str, Any] | None, change: dict[str, Any]) -> dict[str, Any]:
        kept = {columns[number - 1] for number in change["_sluice_unchanged"] or ()}
        return {name: (old or {})[name] if name in kept else change[name] for name in NAMES}

    key = itemgetter("code") if table == "people" else itemgetter("code", "region")
    for lsn, state in states_of(read(f"{table}_changelog"), recorded, key=key, value=changed):
        assert set(map(values, state.values())) == recorded[lsn], f"{table} as of {lsn}"


def values(row: dict[str, Any]) -> Row:
    return tuple(row[name] for name in NAMES)


def fetch(uri: str, options: dict[str, str], folder: Path) -> None:
    """Every object below `uri`, as a file."""
    store = open_store(uri, options=options)
    for key in store.list(""):
        # The marker of a folder, which Hadoop makes, is listed under another name than it has. It holds nothing.
        with suppress(ObjectMissing):
            content = store.get(key)
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
