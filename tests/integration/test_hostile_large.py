"""Random histories with small thresholds for what counts as large: what is spooled, folded row by row, is the source."""

import random
from typing import Any

import pytest

from sluice.ingest.encode import large, rows
from sluice.ingest.encode.builder import BuilderLimits
from sluice.ingest.encode.types import bytea
from sluice.ingest.receive import batching
from sluice.ingest.receive.stream import StreamLimits
from sluice.ingest.snapshot import reader
from sluice.protocol import buffers, frames
from tests.support.ingesting import Pipeline

LARGE = 16 << 10


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (buffers, frames, rows, bytea):
        monkeypatch.setattr(module, "LARGE_BYTES", LARGE)
    monkeypatch.setattr(buffers, "_PIECE_BYTES", 8 << 10)
    monkeypatch.setattr(bytea, "_PIECE_BYTES", 8 << 10)
    monkeypatch.setattr(large, "_PIECE_BYTES", 5000)
    monkeypatch.setattr(batching, "LARGE_PAYLOAD_BYTES", 4096)
    monkeypatch.setattr(reader, "LARGE_PAYLOAD_BYTES", 4096)
    monkeypatch.setattr(reader, "BATCH_BYTES", 100_000)


def value(rnd: random.Random, kind: str) -> str:
    pick = rnd.random()
    size = (
        0
        if pick < 0.1
        else rnd.choice([1, 7, 12, 13, 40])
        if pick < 0.5
        else rnd.choice([2500, 4095, 8192, LARGE - 1, LARGE, LARGE + 1, 2 * LARGE + 5, 60_000, 200_001])
    )
    if rnd.random() < 0.15:
        return "NULL"
    seed = rnd.randrange(1 << 30)
    # hexadecimal noise so that toast stays out of line
    noise = f"left((SELECT string_agg(md5(({seed} + g)::text), '') FROM generate_series(0, {size // 32}) g), {size})"
    if kind == "text":
        return f"{noise} || 'é'" if rnd.random() < 0.3 else noise
    if kind == "bytea":
        return f"convert_to({noise}, 'UTF8')"
    if kind == "arr":
        return f"ARRAY[{noise}, NULL, 'x', {noise}]"
    if kind == "jsonb":
        return f"jsonb_build_object('k', {noise}, 'n', {seed})"
    raise AssertionError(kind)


COLUMNS = {"a": "text", "b": "bytea", "c": "text", "d": "bytea", "e": "arr", "f": "jsonb"}
SQL = {"text": "text", "bytea": "bytea", "arr": "text[]", "jsonb": "jsonb"}


def statement(rnd: random.Random, table: str, columns: dict[str, str]) -> str:
    row = rnd.randrange(6)
    pick = rnd.random()
    if pick < 0.45:
        sets = {name: value(rnd, kind) for name, kind in columns.items()}
        names, values = ", ".join(sets), ", ".join(sets.values())
        again = ", ".join(f"{name} = EXCLUDED.{name}" for name in rnd.sample(list(sets), 2))
        return f"INSERT INTO {table} (id, {names}) VALUES ({row}, {values}) ON CONFLICT (id) DO UPDATE SET {again}"
    if pick < 0.7:
        name = rnd.choice(list(columns))
        return f"UPDATE {table} SET {name} = {value(rnd, columns[name])}, n = {rnd.randrange(99)} WHERE id <= {row}"
    if pick < 0.85:
        return f"UPDATE {table} SET n = {rnd.randrange(999)} WHERE id <= {row}"
    if pick < 0.9:
        return f"UPDATE {table} SET id = id + 10 WHERE id = {row} AND NOT EXISTS (SELECT FROM {table} WHERE id = {row} + 10)"
    if pick < 0.995:
        return f"DELETE FROM {table} WHERE id = {row}"
    return f"TRUNCATE {table}"


def fold(pipeline: Pipeline, name: str, columns: list[str]) -> dict[int, dict[str, Any]]:
    table = pipeline.table(name)
    if table.state == "stale" and "was rewritten" in table.reason:
        pytest.skip("truncated and widened between two looks")
    assert table.state == "live", (table.state, table.reason)
    numbers = {c.attnum: c.name for c in table.schemas[table.schema_version].columns}
    assert table.copy is not None
    at = table.copy.snapshot_lsn
    state = {
        row["id"]: {c: row.get(c) for c in columns}
        for row in pipeline.rows(name, copied=True)
        if row["_sluice_lsn"] == at
    }
    seen = set()
    for row in pipeline.rows(name):
        place = (row["_sluice_lsn"], row["_sluice_ordinal"])
        assert place not in seen, f"doubled {place}"
        seen.add(place)
        if row["_sluice_lsn"] <= at:
            continue
        op = row["_sluice_op"]
        assert not row["_sluice_special"]
        if op == "t":
            state.clear()
            continue
        old = row["_sluice_old"]
        if op == "d":
            del state[old["id"]]
            continue
        before: dict[str, Any] = {}
        if op == "u":
            before = state.pop(old["id"] if old else row["id"])
            if old:
                for c in columns:
                    if c in old and c in before:
                        assert old[c] == before[c], (place, c, "old value differs")
        else:
            assert row["id"] not in state
        unchanged = {numbers[n] for n in row["_sluice_unchanged"] or ()}
        state[row["id"]] = {c: before[c] if c in unchanged else row.get(c) for c in columns}
    return state


def source(pipeline: Pipeline, name: str, columns: list[str]) -> dict[int, dict[str, Any]]:
    with pipeline.database.connect() as connection:
        shown = ", ".join(f"{c}::text" if c == "f" else c for c in columns)
        found = connection.execute(f"SELECT id, {shown} FROM {name}".encode()).fetchall()
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in found}


def work(
    rnd: random.Random, tables: list[str], columns: dict[str, dict[str, str]], count: int, *, gid: list[int]
) -> list[str]:
    out = []
    for _ in range(count):
        out.append("BEGIN")
        depth = 0
        for _ in range(rnd.choice([1, 2, 5, 9])):
            pick = rnd.random()
            if pick < 0.12:
                out.append(f"SAVEPOINT s{depth}")
                depth += 1
            elif pick < 0.2 and depth:
                depth -= 1
                out.append(f"ROLLBACK TO SAVEPOINT s{depth}")
            elif pick < 0.24:
                t = rnd.choice(tables)
                name = f"x{len(columns[t])}_{rnd.randrange(10**6)}"
                if depth == 0:
                    kind = rnd.choice(["text", "bytea"])
                    out.append(f"ALTER TABLE {t} ADD COLUMN {name} {kind}")
                    columns[t][name] = kind
            elif pick < 0.3:
                out.append(
                    f"SELECT pg_logical_emit_message({rnd.choice(['true', 'false'])}, 'm', {value(rnd, 'text')})".replace(
                        "NULL", "''"
                    )
                )
            t = rnd.choice(tables)
            out.append(statement(rnd, t, columns[t]))
        fate = rnd.random()
        out.append("COMMIT")
        _ = fate
    return out


@pytest.mark.parametrize("seed", range(100, 110))
def test_random_histories(pipeline: Pipeline, small: None, seed: int) -> None:
    rnd = random.Random(seed)
    streaming = rnd.choice(["on", "off"])
    binary = seed % 3 == 2
    d = pipeline.database
    kinds = {c: k for c, k in COLUMNS.items() if k != "arr" or not binary}
    columns = {"p": dict(kinds), "q": dict(kinds)}
    made = ", ".join(f"{c} {SQL[k]}" for c, k in kinds.items())
    d.execute(
        f"CREATE TABLE p (id int PRIMARY KEY, {made}, n int)",
        f"CREATE TABLE q (id int PRIMARY KEY, {made}, n int)",
        "ALTER TABLE q REPLICA IDENTITY FULL",
        *[f"ALTER TABLE {t} ALTER COLUMN {c} SET STORAGE EXTERNAL" for t in "pq" for c in "abcd"],
        f"ALTER DATABASE {d.name} SET logical_decoding_work_mem = '64kB'",
    )
    import dataclasses

    options: dict[str, Any] = {
        "streaming": streaming,
        "messages": True,
        "builder": BuilderLimits(max_bytes=rnd.choice([100_000, 1 << 20]), body_bytes=rnd.choice([20_000, 300_000])),
        "stream": StreamLimits(max_delay_s=0.05, batch_bytes=rnd.choice([30_000, 200_000, 1 << 20])),
    }

    def run() -> None:
        pipeline.run(**options, source=dataclasses.replace(pipeline.options().source, binary=binary))

    with d.connect() as one:
        for text in work(rnd, ["p", "q"], columns, 6, gid=[0]):
            one.execute(text.encode())
    run()
    for round_ in range(2):
        with d.connect() as one, d.connect() as two:
            for text in work(rnd, ["p", "q"], columns, 12, gid=[0]):
                one.execute(text.encode())
        run()
        for t in "pq":
            names = [*columns[t], "n"]
            assert fold(pipeline, f"public.{t}", names) == source(pipeline, t, names), f"{t} after round {round_}"
