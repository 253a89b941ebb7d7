"""`spool inspect` and `spool gc`: rows are shown only when asked for, and nothing is deleted unasked."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.entries import Changes, Commits
from sluice.ingest.encode.segment import SegmentWriter
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.support import manifests, recorded
from tests.support.command_line import Sluice
from tests.support.manifests import put
from tests.support.spooled import inserted
from tests.support.spooled import table as shape

CANARY = "canary-in-a-row"
KEY = keys.segment("7", 1, 1)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A spool with one segment of real rows, which entry 3 names, applied."""
    where = f'spool: {{uri: "file://{tmp_path}/spool"}}\nlake: {{uri: "file://{tmp_path}/lake"}}\n'
    text = f'version: 1\npipeline: shop\nsource: {{dsn: "host=127.0.0.1 port=1"}}\n{where}'
    (tmp_path / "sluice.yaml").write_text(text, encoding="utf-8")
    store = open_store(f"file://{tmp_path}/spool", prefix="shop/", options={})
    columns = shape(("id", 23, -1), ("note", 25, -1), key=("id",))
    writer = SegmentWriter(columns)
    writer.append(inserted(columns, (b"1", CANARY.encode()), (b"2", None), lsn=20))
    file = writer.finish()
    store.put(KEY, file.data)
    log = ManifestLog.open(store, manifests.opened(), PipelineState())
    log.append(manifests.table("7"))
    of_file: dict[str, Any] = {"key": KEY, "rows": 2, "bytes": len(file.data), "sha256": file.sha256}
    part = replace(manifests.segment(first_lsn=20), **of_file, key_ranges={"note": (CANARY, CANARY)})
    put(log, Changes((part,), Commits([20], [1], [7])), through_lsn=20)
    rows = recorded.rows(log.state)
    store.create(keys.apply_log(1), AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", rows).encode())
    store.create(keys.apply_complete(1), Complete(1, 20, 3, "2026-01-01T00:00:00+00:00", {}).encode())
    return store


@pytest.fixture
def run(store: ObjectStore, sluice: Sluice, tmp_path: Path) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        ended = sluice(*arguments, cwd=tmp_path)
        return ended.returncode, ended.stdout, ended.stderr

    return run


def test_an_entry_shows_what_it_holds(run: Run) -> None:
    code, shown, _ = run("spool", "inspect", "3", "--json")
    facts = json.loads(shown)
    assert (code, facts["kind"], facts["transactions"]) == (0, "changes", 1)
    assert (facts["through_lsn"], facts["last_commit_lsn"]) == ("0/14", "0/14")
    (segment,) = facts["segments"]
    assert (segment["key"], segment["rows"], segment["ops"]) == (KEY, 2, {"i": 2, "u": 1})
    assert facts["previous_sha256"] == json.loads(run("spool", "inspect", "2", "--json")[1])["sha256"]


def test_a_table_entry_shows_its_columns(run: Run) -> None:
    facts = json.loads(run("spool", "inspect", "2", "--json")[1])
    column = facts["columns"][0]
    assert (facts["table"], facts["state"], column["name"], column["key"]) == ("public.t7", "snapshot", "c1", True)


def test_a_segment_shows_its_columns_and_sizes(run: Run) -> None:
    code, shown, _ = run("spool", "inspect", KEY, "--json")
    facts = json.loads(shown)
    assert (code, facts["rows"], facts["named_by_entry"], facts["as_written"]) == (0, 2, 3, True)
    columns = {column["name"]: column for column in facts["columns"]}
    assert (columns["note"]["ours"], columns["note"]["nulls"], columns["_sluice_lsn"]["ours"]) == (False, 1, True)


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_no_form_shows_a_value(run: Run, form: str) -> None:
    for what in ("1", "2", "3", KEY):
        code, shown, said = run("spool", "inspect", what, "-o", form)
        assert (code, CANARY in shown + said) == (0, False)


def test_rows_are_printed_when_asked_for_by_number_and_on_stdout_only(run: Run) -> None:
    code, shown, said = run("spool", "inspect", KEY, "--values", "1")
    assert (code, CANARY in said) == (0, False)
    (row,) = map(json.loads, shown.splitlines())
    assert (row["id"], row["note"], row["_sluice_lsn"]) == (1, CANARY, 20)
    assert len(run("spool", "inspect", KEY, "--values", "9")[1].splitlines()) == 2


def test_a_segment_that_was_changed_is_said_to_be(run: Run, store: ObjectStore) -> None:
    store.put(KEY, store.get(KEY) + b" ")
    assert run("spool", "inspect", KEY, "--json")[0] == 6, "no longer Parquet"


@pytest.mark.parametrize(
    "what", ["9", "data/7/00000001-0000000009.parquet", "apply/lease.json", "../sluice.yaml", "3 --values 1"]
)
def test_what_is_not_there_or_has_no_rows_is_2(run: Run, what: str) -> None:
    assert run("spool", "inspect", *what.split())[0] == 2


def test_nothing_is_deleted_before_somebody_says_yes(run: Run, store: ObjectStore) -> None:
    code, shown, said = run("spool", "gc", "--retention", "0s")
    assert (code, "to delete: 1 object " in shown, "--yes" in said) == (0, True, True)
    assert store.size(KEY) is not None
    assert run("spool", "verify")[0] == 0
    code, shown, _ = run("spool", "gc", "--retention", "0s", "--yes", "--json")
    facts = json.loads(shown)
    assert (code, facts["deleted"], facts["objects"], facts["through_entry"], facts["held_by"]) == (0, True, 1, 3, [])
    assert store.size(KEY) is None
    code, shown, _ = run("spool", "verify", "--json")
    assert (code, json.loads(shown)["pruned"]) == (0, {"through_entry": 3, "objects": 1, "entries": 0})
    assert "pruned" in run("spool", "verify")[1]


def test_a_plan_says_of_each_table_what_a_retention_takes_and_deletes_nothing(run: Run, store: ObjectStore) -> None:
    code, shown, said = run("spool", "gc", "--plan", "--retention", "0s")
    assert (code, "not afterwards" in shown, "through 0/14" in shown, "--yes" in said) == (0, True, True, True)
    (kept,) = json.loads(run("spool", "gc", "--plan", "--retention", "3d", "--json")[1])["tables"]
    assert (kept["table"], kept["effect"], kept["until"] is not None) == ("public.t7", "keeps", True)
    assert run("spool", "gc", "--plan", "--yes")[0] == 2
    assert store.size(KEY) is not None
    assert run("spool", "gc", "--retention", "0s", "--yes")[0] == 0
    (gone,) = json.loads(run("spool", "gc", "--plan", "--json")[1])["tables"]
    assert (gone["effect"], gone["until"]) == ("lost", None)


def test_who_keeps_what_is_named(run: Run) -> None:
    facts = json.loads(run("spool", "gc", "--json")[1])
    assert [(hold["what"], hold["after_entry"]) for hold in facts["held_by"]] == [("retention", 0)]
    assert "retention entry 1 is younger than asked: everything stays" in run("spool", "gc")[1]


@pytest.mark.parametrize(("retention", "said"), [("until_applied", True), ("7d", False)])
def test_check_says_what_the_retention_deletes_next(
    run: Run, store: ObjectStore, tmp_path: Path, retention: str, *, said: bool
) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text(file.read_text().replace("spool: {", f"spool: {{retention: {retention}, "), encoding="utf-8")
    _, shown, _ = run("check", "--json")
    found = [one for one in json.loads(shown)["findings"] if one["code"] == "spool.retention"]
    assert [one["severity"] for one in found if "deletes 1 object (" in one["seen"]] == ["info"] * said
    assert len(found) == said
    assert store.size(KEY) is not None


@pytest.mark.parametrize("age", ["7", "d", "-1d", "1w", "99999999999999d"])
def test_an_age_is_a_number_and_a_unit(run: Run, age: str) -> None:
    assert run("spool", "gc", "--retention", age)[0] == 2


def test_yaml_says_what_json_says_and_a_failure_is_a_document_too(run: Run) -> None:
    as_json = json.loads(run("spool", "ls", "-o", "json")[1])
    assert yaml.safe_load(run("spool", "ls", "-o", "yaml")[1]) == as_json
    code, shown, _ = run("spool", "inspect", "99", "--output=yaml")
    assert (code, yaml.safe_load(shown)["error"]["exit_code"]) == (2, 2)
    assert "entry" in run("spool", "ls", "-o", "table")[1]
