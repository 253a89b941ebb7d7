"""Ctrl-C while the object store accepts a request and does not answer: a command ends within seconds."""

import os
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.store.opening import open_store
from tests.conformance.spools import World
from tests.support.extent import cases, slow
from tests.support.s3proxy_faults import Operation, S3FaultProxy, delayed
from tests.support.sources import Bucket
from tools.local.sluice import Pipeline

SECONDS = 5.0
_DSN = "postgresql://nobody@127.0.0.1:1/nothing"


def _pipeline(folder: Path, spool_uri: str, options: dict[str, str]) -> Pipeline:
    return Pipeline(folder, name="t", dsn=_DSN, spool_uri=spool_uri, settings={"spool": {"options": options}})


def begun(pipeline: Pipeline, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        pipeline._command(words),
        env={name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupted(command: "subprocess.Popen[bytes]") -> tuple[int, float]:
    """How it ends after Ctrl-C, and after how many seconds."""
    began = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)
    try:
        return command.wait(60), time.monotonic() - began
    except subprocess.TimeoutExpired:
        command.kill()
        return command.wait(), time.monotonic() - began


CASES: dict[str, tuple[tuple[str, ...], Operation]] = {
    "sizes": (("spool", "verify"), "head"),
    "contents": (("spool", "verify", "--content"), "get"),
    "deleting": (("spool", "gc", "--retention", "until_applied", "--yes"), "delete"),
}


@pytest.mark.parametrize("case", cases(CASES, quick=["sizes", "deleting"]))
def test_an_interrupt_ends_what_asks_for_many_objects_while_the_store_hangs(
    moto: Bucket, tmp_path: Path, case: str
) -> None:
    words, operation = CASES[case]
    world = World(
        open_store(f"{moto.uri}/spool", prefix="t/", options=moto.options), begin=datetime(2020, 1, 1, tzinfo=UTC)
    )
    world.join("7")
    for _ in range(12):
        world.change("7")
    world.applied()
    with S3FaultProxy(moto.server.port) as proxy:
        options = {**moto.options, "endpoint": proxy.endpoint}
        pipeline = _pipeline(tmp_path, f"{moto.uri}/spool", options)
        asked = "data/" if operation in ("head", "get") else ""  # several objects are deleted in one request
        hangs = proxy.plan(
            delayed(120), operations={operation}, matches=lambda request: asked in request.key, count=None
        )
        command = begun(pipeline, *words)
        assert hangs.wait(60), [str(request) for request, _ in proxy.requests[-5:]]
        code, seconds = interrupted(command)
        assert (code, seconds < SECONDS) == (130, True), seconds


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("spool", "ls"), marks=slow),
        pytest.param(("spool", "verify"), marks=slow),
        pytest.param(("spool", "gc"), marks=slow),
        ("tables",),
        ("status",),
        ("verify",),
    ],
    ids=" ".join,
)
def test_an_interrupt_ends_a_command_whose_first_question_is_not_answered(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        known = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "aws_region": "us-east-1"}
        options = {**known, "allow_http": "true", "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = begun(_pipeline(tmp_path, "s3://bucket/spool", options), *words)
        with silent.accept()[0] as asked:
            assert asked.recv(1)
            code, seconds = interrupted(command)
        assert (code, seconds < SECONDS) == (130, True), seconds
