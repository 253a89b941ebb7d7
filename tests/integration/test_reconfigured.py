"""The configuration is edited while ingest runs: taken as a whole within seconds, or refused by name."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from sluice.contract.column_values import key_id
from sluice.manifest.reader import load_state
from tests.support.column_rules import KEYS
from tests.support.extent import FULL, slow
from tests.support.sources import Database
from tests.support.surfaces import Pipe


def states(pipe: Pipe) -> dict[str, str]:
    return {table.table_name: table.state for table in load_state(pipe.store).tables.values()}


def edit(pipe: Pipe, *changes: tuple[str, str]) -> None:
    """As an editor does: another file in its place."""
    text = pipe.config.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    beside = pipe.config.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(pipe.config)


def shown(pipe: Pipe) -> dict[str, Any]:
    code, text = pipe.get("/status")
    assert code == 200, text
    document: dict[str, Any] = json.loads(text)
    return document


def refused(pipe: Pipe) -> str:
    document = shown(pipe)
    problems = [one["message"] for one in document["problems"] if one["code"] == "configuration.refused"]
    assert problems == [document["process"]["configuration"]["refused"]] * bool(problems)
    return "".join(problems)


def refused_and_taken_again(pipe: Pipe) -> None:
    """More edits, each seen after seconds: mistakes, a signal, targets."""
    edit(pipe, ("max_delay: 60ms", "max_delays: 50ms"))
    pipe.wait(lambda: "max_delay" in refused(pipe) and "did you mean" in refused(pipe))

    edit(pipe, ("max_delays: 50ms", "max_delay: 50ms"))
    assert pipe.process is not None
    os.kill(pipe.process.pid, signal.SIGHUP)
    pipe.wait(lambda: not refused(pipe) and states(pipe) == {"kept": "live", "logs": "live"})

    changed = ", ".join(f'"public.{name}": {{targets: [{{kind: changelog}}]}}' for name in ("kept", "new"))
    edit(pipe, ("limits:", f"tables: {{{changed}}}\nlimits:"))
    assert "the targets of public.kept cannot change" in pipe.wait(lambda: refused(pipe))
    edit(pipe, ('"public.kept": {targets: [{kind: changelog}]}, ', ""))
    pipe.wait(lambda: not refused(pipe))


def test_an_edited_file_is_taken_whole_or_not_at_all_and_nothing_pauses(database: Database, tmp_path: Path) -> None:
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("kept", "logs")))
    database.execute("CREATE PUBLICATION {p} FOR TABLE kept, logs")
    pipe = Pipe(database, tmp_path, extra="limits: {staged: 2GiB}")
    with pipe.start():
        pipe.streaming().live()
        since = shown(pipe)["process"]["configuration"]["in_force_since"]
        edit(pipe, ('["public.*"]', '["public.*", "!public.logs"]'), ("staged: 2GiB", "staged: 3GiB"))
        pipe.wait(lambda: states(pipe) == {"kept": "live", "logs": "detached"})
        (logs,) = (table for table in load_state(pipe.store).tables.values() if table.table_name == "logs")
        assert "source.tables no longer selects it" in logs.reason
        pipe.wait(lambda: shown(pipe)["process"]["configuration"]["in_force_since"] > since)

        # Half of it could be taken: nothing is.
        edit(pipe, ('["public.*", "!public.logs"]', '["public.*"]'), ("max_delay: 50ms", "max_delay: 60ms"))
        reason = pipe.wait(lambda: refused(pipe))
        assert "spool.max_delay cannot change while a process runs" in reason
        assert states(pipe)["logs"] == "detached"
        if FULL:
            refused_and_taken_again(pipe)

        events = [event["event"] for event in pipe.events()]
        assert events.count("streaming") == 1
        assert shown(pipe)["process"]["reconnects"] == 0
        generations = {table.table_name: table.generation for table in load_state(pipe.store).tables.values()}
        assert generations == {"kept": 1, "logs": 2 if FULL else 1}


@slow
def test_another_key_in_the_file_of_a_column_rule_is_noticed_and_the_table_is_read_again(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'one')")
    database.execute("CREATE PUBLICATION {p} FOR TABLE t")
    key = tmp_path / "hash.key"
    key.write_bytes(KEYS[0])
    rule = f'tables: {{"public.t": {{columns: {{v: {{hash: hmac-sha256, key_file: "{key}"}}}}}}}}'
    pipe = Pipe(database, tmp_path, extra=rule)

    def table() -> tuple[int, str, str]:
        (found,) = load_state(pipe.store).tables.values()
        rule = found.schemas[found.schema_version].columns[1].rule
        return found.generation, found.state, rule.key_id if rule is not None else ""

    with pipe.start():
        pipe.streaming().live()
        assert table() == (1, "live", key_id(KEYS[0]))
        key.write_bytes(KEYS[1])
        pipe.wait(lambda: table() == (2, "live", key_id(KEYS[1])))
        key.write_bytes(b"short")
        assert "at least 16" in pipe.wait(lambda: refused(pipe))
        assert table() == (2, "live", key_id(KEYS[1]))
