"""What `sluice query` says: every column of an answer, and which table lacks files that somebody removed."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice.contract import boundary as stated
from sluice.contract.applied import time_text
from sluice.contract.boundary import BoundaryTable, LakeBoundary
from sluice.errors import ManifestCorrupt
from sluice_lake import Lake, VersionMissing
from tests.support.command_line import Sluice
from tests.support.offered import publish

AT = time_text(1_800_000_000.0)


def _configured(folder: Path, lake: Path) -> None:
    (folder / "sluice.yaml").write_text(
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://nobody@127.0.0.1:1/none'}}\n"
        f"spool: {{uri: '{(folder / 'spool').as_uri()}'}}\nlake: {{uri: '{lake.as_uri()}'}}\n"
    )


def _lake(folder: Path) -> Path:
    """Of one table of two files, of which one is not there any more."""
    lake, marker = folder / "lake", CommitProperties(app_transactions=[Transaction("m", 1)])
    for _ in range(2):
        write_deltalake(str(lake / "t"), pa.table({"id": [1]}), mode="append", commit_properties=marker)
    next((lake / "t").glob("*.parquet")).unlink()
    tables = (BoundaryTable("public", "t", "t", 1, "m", 1),)
    made = LakeBoundary(1, "shop", "m", "0/10", 1, AT, AT, AT, 3600.0, tables, {})
    path = lake / stated.key("shop", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(made.encode())
    return lake


def _without_tables(folder: Path) -> None:
    (folder / "lake").mkdir()
    publish(folder / "lake", 1, 10, tables=())
    _configured(folder, folder / "lake")


def test_a_missing_file_is_named_with_its_table_by_arrow_and_behind_a_view(tmp_path: Path) -> None:
    now = Lake(str(_lake(tmp_path))).as_of()
    with pytest.raises(VersionMissing, match=r"version 1 of the lake table public\.t cannot be read"):
        now.arrow("t")
    connection = now.duckdb()
    now.require_readable()
    with pytest.raises(duckdb.Error):
        connection.execute("SELECT * FROM t").fetchall()
    with pytest.raises(VersionMissing, match=r"version 1 of the lake table public\.t cannot be read"):
        now.require_readable()


def test_the_command_says_that_a_file_is_missing_and_blames_no_statement(tmp_path: Path, sluice: Sluice) -> None:
    lake = _lake(tmp_path)
    _configured(tmp_path, lake)
    answer = sluice("query", "SELECT * FROM t", cwd=tmp_path)
    assert "version 1 of the lake table public.t cannot be read" in answer.stderr, answer.stderr
    assert (answer.returncode, answer.stdout) == (ManifestCorrupt.exit_code, "")


def test_columns_of_one_name_are_all_shown_and_none_stands_for_another(tmp_path: Path, sluice: Sluice) -> None:
    _without_tables(tmp_path)
    statement = "SELECT 11 AS id, 22 AS balance, 33 AS id"
    answer = sluice("query", statement, cwd=tmp_path)
    (row,) = (line for line in answer.stdout.splitlines() if "22" in line)
    assert re.findall(r"\d+", row) == ["11", "22", "33"]
    assert sluice("query", statement, "-o", "csv", cwd=tmp_path).stdout.splitlines()[1:] == ["11,22,33"]
    told_apart = {"id": 11, "balance": 22, "id_1": 33}
    assert json.loads(sluice("query", statement, "-o", "json", cwd=tmp_path).stdout) == told_apart
    command = [sys.executable, "-m", "sluice", "query", statement, "-o", "parquet"]
    redirected = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout
    assert pq.read_table(pa.BufferReader(redirected)).to_pylist() == [told_apart]


def test_each_form_has_bytes_and_floats_that_programs_can_read_back(tmp_path: Path, sluice: Sluice) -> None:
    _without_tables(tmp_path)
    statement = (
        "SELECT 'NaN'::DOUBLE AS f, '\\xFF\\x00'::BLOB AS b, ['-inf'::DOUBLE] AS l, ['\\xFF'::BLOB] AS bs, 1.5 AS n"
    )
    said = sluice("query", statement, "-o", "json", cwd=tmp_path).stdout
    wanted = {"f": "nan", "b": "/wA=", "l": ["-inf"], "bs": ["/w=="], "n": "1.5"}
    assert json.loads(said, parse_constant=pytest.fail) == wanted
    (line,) = sluice("query", statement, "-o", "csv", cwd=tmp_path).stdout.splitlines()[1:]
    assert next(csv.reader([line])) == ["nan", "/wA=", '["-inf"]', '["/w=="]', "1.5"]
    assert "/wA=" in sluice("query", statement, cwd=tmp_path).stdout
