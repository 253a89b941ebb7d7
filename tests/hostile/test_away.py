"""Sources and stores that take a connection and never answer."""

import json
import socket
import time
from pathlib import Path

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def silent() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return listener


def test_status_of_a_source_that_never_answers(database: Database, tmp_path: Path) -> None:
    orders(database)
    assert Pipe(database, tmp_path)("run", "--until-caught-up").returncode == 0
    listener = silent()
    for what, dsn in (("silent", f"postgresql://u:hunter2secret@127.0.0.1:{listener.getsockname()[1]}/d"), ("closed", "postgresql://u:hunter2secret@127.0.0.1:1/d")):
        pipe = Pipe(database, tmp_path, dsn=dsn)
        for command in ("status", "tables", "slot show", "copy public.orders", "check"):
            began = time.monotonic()
            ended = pipe(*command.split())
            print(what, command, ended.returncode, round(time.monotonic() - began, 1), ended.stderr[-200:].replace("\n", "|"))
            assert "hunter2secret" not in ended.stdout + ended.stderr
        took.append(time.monotonic() - began)
    listener.close()
    assert max(took) < 30, took
    listener.close()


def test_status_of_a_store_that_never_answers(database: Database, tmp_path: Path) -> None:
    listener = silent()
    options = f'spool: {{uri: "s3://b/x", options: {{aws_endpoint: "http://127.0.0.1:{listener.getsockname()[1]}", allow_http: "true", aws_region: r, aws_access_key_id: k, aws_secret_access_key: hunter2secret}}}}'
    pipe = Pipe(database, tmp_path)
    text = "\n".join(line if not line.startswith("spool:") else options for line in pipe.config.read_text().splitlines())
    pipe.config.write_text(text)
    took = []
    for command in ("status --json", "tables"):
        began = time.monotonic()
        ended = pipe(*command.split(), timeout=170)
        print(command, ended.returncode, round(time.monotonic() - began, 1), ended.stdout[-300:], ended.stderr[-300:])
        assert "hunter2secret" not in ended.stdout + ended.stderr
        took.append(time.monotonic() - began)
    listener.close()
    assert max(took) < 30, took
