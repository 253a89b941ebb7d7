"""A damaged checkpoint, and what somebody else put below the manifest."""

import json

import pytest

from sluice.contract import keys
from sluice.contract.entries import Progress
from sluice.manifest import checkpoint
from sluice.manifest.follow import load_state
from tests.support.manifests import put
from tests.unit.test_runtime_backlog import Spool


def spool() -> Spool:
    one = Spool()
    for _ in range(3):
        put(one.log, Progress(), through_lsn=one.log.state.through_lsn + 10)
    checkpoint.write(one.store, one.log.state)
    put(one.log, Progress(), through_lsn=one.log.state.through_lsn + 10)
    return one


DAMAGE = {
    "cut": lambda data: data[:-5],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "list": lambda data: b"[]",
    "state is null": lambda data: json.dumps({**json.loads(data), "state": None}).encode(),
    "state is deep": lambda data: data.replace(b'"state":{', b'"state":' + b"[" * 600 + b"]" * 600 + b',"x":{'),
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "version is text": lambda data: data.replace(b'"format_version":1', b'"format_version":"1"'),
    "version is null": lambda data: data.replace(b'"format_version":1', b'"format_version":null'),
    "digest is null": lambda data: json.dumps({**json.loads(data), "state_sha256": None}).encode(),
    "surrogate": lambda data: data.replace(b'"state_sha256":"', b'"state_sha256":"\\ud800'),
    "big number": lambda data: data.replace(b'"state":{', b'"state":{"y":1e999,'),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(how: str) -> None:
    one = spool()
    key = keys.checkpoint(one.log.state.seq - 1)
    one.store.put(key, DAMAGE[how](one.store.get(key)))
    assert load_state(one.store) == one.log.state


@pytest.mark.parametrize(
    "name",
    [
        "manifest/README",
        "manifest/desktop.ini",
        "manifest/00000000.json.bak",
        "manifest/checkpoint/x",
        "manifest/checkpoint.bak/x",
        "manifest/9",
        "manifest/~tmp",
    ],
)
def test_junk_below_the_manifest_stops_nothing(name: str) -> None:
    one = spool()
    one.store.put(name, b"x")
    assert load_state(one.store) == one.log.state
