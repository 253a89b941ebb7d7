"""`check --object-store`: twelve calls, each of which can fail by its own name and leaves the others to be tried."""

import time
import uuid
from typing import Any

import obstore.store
import pytest

from sluice.contract import keys
from sluice.errors import ObjectExists, StoreRefused, StoreUnavailable
from sluice.store.base import ObjectStore
from sluice.store.conformance import Conformance, examine
from sluice.store.memory import MemoryStore
from sluice.store.probe import ABANDONED_SECONDS
from sluice.store.remote import RemoteStore
from tests.conformance.test_store import IgnoresTheHeader, ListsLate

CALLS = 12


def outcomes(seen: Conformance) -> dict[str, str]:
    return {call.name: call.outcome for call in seen.calls}


def test_a_good_store_passes_all_it_has_and_nothing_is_left_behind(store: ObjectStore) -> None:
    seen = examine(store, options={})
    assert seen.findings == []
    assert len(outcomes(seen)) >= CALLS
    wanted = {"passed"} if isinstance(store, RemoteStore) else {"passed", "not asked"}
    assert set(outcomes(seen).values()) == wanted
    assert list(store.list("")) == []
    assert bool(seen.not_examined) == isinstance(store, RemoteStore)


def test_what_an_earlier_check_left_behind_is_removed_once_it_is_certainly_over(store: ObjectStore) -> None:
    def tried(age_seconds: float) -> str:
        return keys.probe_folder(time.time_ns() - int(age_seconds * 1e9), uuid.uuid4().hex) + "reach"

    under_way, died = tried(ABANDONED_SECONDS - 60), tried(ABANDONED_SECONDS + 60)
    for key in (under_way, died):
        store.put(key, b"reach")
    assert examine(store, options={}).findings == []
    assert list(store.list("")) == [under_way]


class Forgetful(MemoryStore):
    def get(self, key: str) -> bytes:
        return super().get(key)[:10]


class Keeps(MemoryStore):
    def delete(self, key: str) -> None:
        raise StoreRefused("delete: status 403 AccessDenied")


class Away(MemoryStore):
    def put(self, key: str, data: bytes | memoryview) -> None:
        raise StoreUnavailable("put: no usable answer")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (IgnoresTheHeader, "store.create"),
        (Forgetful, "store.overwrite"),
        (ListsLate, "store.list"),
        (Keeps, "store.delete"),
        (Away, "store.reach"),
    ],
)
def test_what_the_pipeline_stands_on_is_named_when_it_does_not_hold(kind: type[MemoryStore], code: str) -> None:
    seen = examine(kind(uuid.uuid4().hex), options={})
    assert {finding.code for finding in seen.findings} == {code}
    assert {finding.severity for finding in seen.findings} == ({"warning"} if code == "store.delete" else {"critical"})


class Broken:
    """A backend of which one call does something else; all others are those of a good one."""

    def __init__(self, name: str, instead: Any) -> None:
        self._good = obstore.store.MemoryStore()
        self._name, self._instead = name, instead

    def __getattr__(self, name: str) -> Any:
        return (
            (lambda *given, **named: self._instead(self._good, *given, **named))
            if name == self._name
            else getattr(self._good, name)
        )


def unsupported(*_: Any, **__: Any) -> None:
    raise obstore.exceptions.NotSupportedError("not here")


def ignoring_if_match(good: Any, key: str, data: Any, *, mode: Any = "overwrite", **named: Any) -> Any:
    return good.put(key, data, mode=mode if isinstance(mode, str) else "overwrite", **named)


def refusing_if_match(good: Any, key: str, data: Any, *, mode: Any = "overwrite", **named: Any) -> Any:
    return good.put(key, data, mode=mode, **named) if isinstance(mode, str) else unsupported()


def losing_parts(good: Any, key: str, data: Any, **named: Any) -> Any:
    return good.put(key, bytes(data)[: 8 << 20], **named)


def one_only(good: Any, keys: Any) -> None:
    good.delete(keys if isinstance(keys, str) else keys[:1])


@pytest.mark.parametrize(
    ("call", "instead", "code"),
    [
        ("put", losing_parts, "store.multipart"),
        ("get_range", lambda good, key, *, start, end: good.get_range(key, start=0, end=end), "store.range"),
        ("list_with_delimiter", unsupported, "store.delimiter"),
        ("put", ignoring_if_match, "store.etag"),
        ("put", refusing_if_match, "store.etag"),
        ("copy", unsupported, "store.copy"),
        ("delete", one_only, "store.bulk_delete"),
    ],
)
def test_what_spark_and_others_ask_is_named_when_it_does_not_hold(call: str, instead: Any, code: str) -> None:
    seen = examine(RemoteStore(Broken(call, instead), uri="s3://bucket/prefix"), options={})  # type: ignore[arg-type]
    assert {finding.code for finding in seen.findings} == {code}
    assert "failed" in outcomes(seen).values()


def test_a_clock_that_is_off_is_named() -> None:
    backend: Any = obstore.store.MemoryStore()
    off = examine(RemoteStore(backend, uri="s3://bucket/prefix"), options={}, now=lambda: 0.0)
    assert {finding.code for finding in off.findings} == {"store.clock"}


def test_http_to_another_machine_is_named_and_to_this_one_it_is_not() -> None:
    for endpoint, expected in (
        ("http://minio.internal:9000", ["store.plain"]),
        ("http://127.0.0.1:9000", []),
        ("https://minio.internal", []),
    ):
        assert [
            finding.code
            for finding in examine(MemoryStore(uuid.uuid4().hex), options={"aws_endpoint": endpoint}).findings
        ] == expected


def test_an_object_that_was_there_before_is_not_touched(store: ObjectStore) -> None:
    store.create("manifest/1.json", b"1")
    examine(store, options={})
    assert store.get("manifest/1.json") == b"1"
    with pytest.raises(ObjectExists):
        store.create("manifest/1.json", b"2")


def test_a_store_that_ignores_where_a_listing_begins_is_still_listed_from_there() -> None:
    backend: Any = Broken("list", lambda good, prefix, *, offset, **named: good.list(prefix, **named))
    store = RemoteStore(backend, uri="az://container/prefix")
    for key in ("m/1", "m/2", "m/3"):
        store.put(key, b"")
    assert list(store.list("m/", after="m/2")) == ["m/3"]
