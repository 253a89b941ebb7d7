"""Findings: documented, stable, each proven by a test, and never a danger themselves."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.cli.findings_view import ordered, script
from sluice.findings import KINDS, Finding, Step

TESTS = Path(__file__).parents[1]


def test_each_code_is_proven_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    assert [kind.code for kind in KINDS if f'"{kind.code}"' not in tests] == []


def test_an_undocumented_finding_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        Finding("critical", "no.such", "x", "y")
    with pytest.raises(ValueError, match="never info"):
        Finding("info", "server.wal_level", "x", "y")


HOSTILE = 'evil"\n; DROP TABLE t; --\r\n'


def test_a_script_runs_in_order_and_keeps_what_is_dangerous_in_comments() -> None:
    identity, wal = f'ALTER TABLE "{HOSTILE}" REPLICA IDENTITY FULL;', "ALTER SYSTEM SET wal_level = 'logical';"
    drop, grant = "SELECT pg_drop_replication_slot('s');", "GRANT SELECT ON t TO r;"
    findings = [
        Finding("critical", "slot.invalidated", "s", "lost", fix_sql=drop, by_hand=True),
        Finding("critical", "publication.lacks_tables", "p", "lacks", fix_sql="ALTER PUBLICATION p ADD TABLE t;"),
        Finding("critical", "table.no_identity", HOSTILE, f"seen {HOSTILE}", fix_sql=identity, by_hand=True),
        Finding("critical", "server.wal_level", "wal_level", "replica", fix_sql=wal, needs_restart=True),
        Finding("critical", "table.not_readable", "t", "unreadable", fix_sql=grant),
        Finding("critical", "store.reach", "s3://b", "403", fix_setting="the policy"),
    ]
    text = script(ordered(findings), pipeline="shop")
    run = [line for line in text.splitlines() if line and not line.startswith("--")]
    assert run == [wal, grant, "ALTER PUBLICATION p ADD TABLE t;"]
    assert f"-- {drop}" in text
    assert text.index("Restart the server now") < text.index("GRANT SELECT")
    assert "the policy" in text
    assert re.search(r"^-- .*DROP TABLE t", text, re.MULTILINE)


def test_every_step_has_a_heading() -> None:
    kinds = {kind.step: kind for kind in KINDS}
    assert set(kinds) == set(Step)
    for kind in kinds.values():
        assert kind.code in script([Finding(kind.severities[0], kind.code, "x", "y")], pipeline="shop")


def test_whatever_needs_a_fix_says_what_to_do() -> None:
    found = Finding("critical", "source.connect", "source.dsn", "no answer")
    assert "pg_hba.conf" in found.fix_setting
    assert replace(found, fix_setting="start it").fix_setting == "start it"
    assert Finding("info", "slot.missing", "s", "not there yet").fix_setting == ""
