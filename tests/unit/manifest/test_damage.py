"""A damaged checkpoint is passed over: the chain of entries does not need it."""

import json
from collections.abc import Callable

import pytest

from sluice.contract import keys
from sluice.contract.entries import Progress
from sluice.manifest import checkpoint
from sluice.manifest.reader import load_state
from tests.support.manifests import put
from tests.support.recorded import RecordedPipeline

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-5],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "a list": lambda data: b"[]",
    "state is null": lambda data: json.dumps({**json.loads(data), "state": None}).encode(),
    "state is deep": lambda data: data.replace(b'"state":{', b'"state":' + b"[" * 600 + b"]" * 600 + b',"x":{'),
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "version is text": lambda data: data.replace(b'"format_version":1', b'"format_version":"1"'),
    "version is null": lambda data: data.replace(b'"format_version":1', b'"format_version":null'),
    "digest is null": lambda data: json.dumps({**json.loads(data), "state_sha256": None}).encode(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(how: str) -> None:
    pipeline = RecordedPipeline()
    log = pipeline.log
    for _ in range(3):
        put(log, Progress(), through_lsn=log.state.through_lsn + 10)
    checkpoint.write(pipeline.store, log.state)
    key = keys.checkpoint(log.state.seq)
    put(log, Progress(), through_lsn=log.state.through_lsn + 10)
    stored = pipeline.store.get(key)
    damaged = DAMAGE[how](stored)
    assert damaged != stored
    pipeline.store.put(key, damaged)
    assert load_state(pipeline.store) == log.state
