"""What of the settings a running process may take is taken, and all else is named."""

from pathlib import Path

import pytest

from sluice.settings import Settings, load
from sluice.settings.reload import differing, fixed

BEFORE = """\
version: 1
pipeline: shop
source: {dsn: "host=nowhere password=one", tables: ["public.*"]}
spool: {uri: "file:///var/spool", options: {aws_secret_access_key: one}}
lake: {uri: "file:///var/lake"}
"""


def settings(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "sluice.yaml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), environ=environ).settings


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('["public.*"]', '["public.*", "!public.logs"]', ()),
        ("version: 1\n", "version: 1\ntables: {public.a: {targets: [{kind: changelog}], freshness: 9s}}\n", ()),
        ("version: 1\n", "version: 1\ntables: {public.a: {targets: [{kind: history, freshness: 9s}]}}\n", ()),
        ("version: 1\n", "version: 1\nlimits: {staged: 7GiB, open_streams: 9}\n", ()),
        ("version: 1\n", "version: 1\napply: {freshness: 9s}\ntelemetry: {log_level: debug}\n", ()),
        ("version: 1\n", "version: 1\n# a remark\n", ()),
        ("tables: [", "snapshot_max_stream_lag: 1GiB, snapshot_hold: 9s, tables: [", ()),
        ("tables: [", "snapshot_max_replica_lag: 9s, snapshot_max_active_sessions: 9, tables: [", ()),
        ("tables: [", "snapshot_rows_per_second: 9, tables: [", ("source.snapshot_rows_per_second",)),
        ("password=one", "password=two", ()),
        ("aws_secret_access_key: one", "aws_secret_access_key: two", ()),
        ("aws_secret_access_key: one", "aws_endpoint: https://two", ("spool.options",)),
        ("version: 1\n", "version: 1\napply: {freshness: 9s, workers: 3}\n", ("apply.workers",)),
        ("pipeline: shop", "pipeline: store", ("pipeline", "source.publication", "source.slot")),
    ],
)
def test_every_change_that_a_running_process_cannot_take_is_named(
    tmp_path: Path, old: str, new: str, named: tuple[str, ...]
) -> None:
    assert old in BEFORE
    before, after = settings(tmp_path, BEFORE), settings(tmp_path, BEFORE.replace(old, new))
    assert differing(fixed(before), fixed(after)) == named


def test_no_secret_is_in_what_is_compared(tmp_path: Path) -> None:
    assert "one" not in " ".join(fixed(settings(tmp_path, BEFORE)).values())
