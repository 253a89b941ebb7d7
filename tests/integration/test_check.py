"""`sluice check` as a person and as a script run it: exit codes, JSON, the file of SQL, and what it
says it could not look at.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli import check as check_command
from sluice.cli import cli, exits
from tests.support.least_rights import grant, options_as, pipeline_role, run_script
from tests.support.sources import Bucket, Database
from tools.local.sluice import Pipeline

CALLS = 12


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Iterator[Pipeline]:
    """One whose role has its rights, and whose table has no identity."""
    with pipeline_role(database) as role:
        database.execute("CREATE TABLE t (id int)")
        grant(database, role, tables="t")
        source = {"slot": database.slot, "publication": database.publication}
        yield Pipeline(tmp_path / "p", name="shop", dsn=options_as(database, role).dsn, settings={"source": source})
    database.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def check(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], *arguments: str, command: str = "check"
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = exits.execute(cli, [command, *arguments, "-c", str(pipeline.config)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_critical_is_3_and_fixed_by_the_file_it_is_0_and_strict_minds_warnings(
    pipeline: Pipeline, database: Database, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fix = tmp_path / "fix.sql"
    code, said, error = check(pipeline, capsys, "--sql-out", str(fix))
    assert code == 3
    assert "[table.no_identity]" in said
    assert 'SQL: ALTER TABLE "public"."t" REPLICA IDENTITY FULL;' in said
    assert "1 critical finding," in error
    run_script(database, fix)
    code, said, error = check(pipeline, capsys)
    assert (code, "ready: nothing critical" in error) == (0, True)
    assert "[server.keep_size]" not in said, "the script has set it"
    assert check(pipeline, capsys, "--strict")[0] == 3, "a table without a key is a warning"
    database.execute("ALTER TABLE t ADD PRIMARY KEY (id)", "ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert check(pipeline, capsys, "--strict")[0] == 0


def test_the_object_store_alone_is_asked_its_twelve_calls_and_nothing_else(
    pipeline: Pipeline, moto: Bucket, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    remote = Pipeline(
        tmp_path / "r",
        name="shop",
        dsn="host=127.0.0.1 port=1",
        spool_uri=f"{moto.uri}/spool",
        settings={"spool": {"options": moto.options}},
    )
    code, said, _ = check(remote, capsys, "--object-store", "--json")
    document = json.loads(said)
    assert (code, document["findings"]) == (0, [])
    assert [call["outcome"] for call in document["object_store"] if call["call"] != "clock"] == ["passed"] * CALLS
    assert [unseen["how"].split(" --bucket")[0] for unseen in document["not_examined"]] == [
        "aws s3api get-bucket-lifecycle-configuration",
        "aws s3api get-bucket-encryption",
    ]
    assert "accept the right ETag" in check(remote, capsys, "--object-store")[1]


def test_an_installation_of_one_side_says_that_it_could_not_look_at_the_other(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, what in (("pyspark", "Java, Spark and the lake"), ("psycopg", "the source")):
        monkeypatch.setattr(
            check_command, "find_spec", lambda name, package=package: None if name == package else object()
        )
        document = json.loads(check(pipeline, capsys, "--json")[1])
        assert [unseen["what"] for unseen in document["not_examined"]] == [what]


def test_the_lake_is_looked_at_too(pipeline: Pipeline, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    log = pipeline.directory / "lake" / "public" / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["quantum"],"writerFeatures":["quantum"]}}'
    )
    document = json.loads(check(pipeline, capsys, "--json")[1])
    assert "lake.protocol" in {finding["code"] for finding in document["findings"]}
