"""The misbehaving S3 proxy itself: each fault is seen by a real client as what it claims to be, and
nothing else changes.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice.store.probe import probe
from tests.support.s3proxy_faults import (
    Fault,
    S3FaultProxy,
    delayed,
    error,
    error_after,
    reset_after,
    reset_before,
    stale_list,
    truncated,
)
from tests.support.sources import Bucket

SIGNED = "AWS4-HMAC-SHA256 Credential=test/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""moto lets nobody read without a name; it checks no signature."""


@pytest.fixture
def proxy(moto: Bucket) -> Iterator[S3FaultProxy]:
    with S3FaultProxy(moto.server.port) as running:
        yield running


@pytest.fixture
def beside(moto: Bucket) -> ObjectStore:
    """The same store, without the proxy."""
    return open_store(f"{moto.uri}/spool", options=moto.options)


def _ask(
    proxy: S3FaultProxy, moto: Bucket, method: str, key: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{proxy.endpoint}/{moto.name}/{key}", method=method, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def test_without_a_plan_the_store_keeps_every_promise_through_the_proxy(proxy: S3FaultProxy, moto: Bucket) -> None:
    store = open_store(f"{moto.uri}/spool", options={**moto.options, "endpoint": proxy.endpoint})
    probe(store)
    store.put("large", bytes(20 << 20))
    assert store.size("large") == 20 << 20
    assert store.get("large") == bytes(20 << 20)
    seen = {request.operation for request, _ in proxy.requests}
    assert {"create", "put", "get", "list", "head", "delete", "start upload", "part", "complete upload"} <= seen
    assert not proxy.counts


@pytest.mark.parametrize(
    ("fault", "stored"),
    [(error(403, "AccessDenied"), False), (error_after(500, "InternalError"), True)],
    ids=["before the server", "after the server"],
)
def test_an_error_is_an_s3_document_and_says_nothing_about_what_was_stored(
    proxy: S3FaultProxy, moto: Bucket, beside: ObjectStore, fault: Fault, stored: bool
) -> None:
    fired = proxy.plan(fault, operations={"put"})
    assert not fired.is_set()
    status, document = _ask(proxy, moto, "PUT", "spool/k", b"1")
    assert (status, fired.is_set()) == (fault.status, True)
    assert f"<Code>{fault.code}</Code>".encode() in document
    assert (beside.size("k") is not None) is stored
    assert _ask(proxy, moto, "PUT", "spool/other", b"2")[0] == 200
    assert [str(done) if done else "" for _, done in proxy.requests] == [str(fault), ""]


@pytest.mark.parametrize(
    ("fault", "stored"), [(reset_before(), False), (reset_after(), True)], ids=["before the server", "after the server"]
)
def test_a_reset_ends_the_connection_without_an_answer(
    proxy: S3FaultProxy, moto: Bucket, beside: ObjectStore, fault: Fault, stored: bool
) -> None:
    proxy.plan(fault, matches=lambda request: request.key == "spool/k")
    with pytest.raises((ConnectionError, urllib.error.URLError)):
        _ask(proxy, moto, "PUT", "spool/k", b"1")
    assert (beside.size("k") is not None) is stored


def test_a_truncated_answer_ends_before_its_length(proxy: S3FaultProxy, moto: Bucket, beside: ObjectStore) -> None:
    beside.put("k", b"0123456789")
    proxy.plan(truncated(), operations={"get"})
    with pytest.raises(http.client.IncompleteRead) as caught:
        _ask(proxy, moto, "GET", "spool/k", Authorization=SIGNED)
    assert caught.value.partial == b"01234"


def test_a_stale_list_lacks_what_was_stored_last(proxy: S3FaultProxy, moto: Bucket) -> None:
    for key in ("spool/a", "spool/b"):
        _ask(proxy, moto, "PUT", key, b"1")
    proxy.plan(stale_list(), operations={"list"})
    first, second = (_ask(proxy, moto, "GET", "?list-type=2&prefix=spool/")[1] for _ in range(2))
    assert (first.count(b"<Contents>"), second.count(b"<Contents>")) == (1, 2)
    assert b"spool/a" in first


def test_what_is_held_or_delayed_is_answered_when_it_is_let_go(proxy: S3FaultProxy, moto: Bucket) -> None:
    proxy.hold()
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(_ask, proxy, moto, "PUT", "spool/k", b"1")
        fired = proxy.plan(delayed(3600), operations={"put"})
        assert not held.done()
        proxy.release()
        assert fired.wait(60)
        assert not held.done()
        proxy.calm()
        assert held.result(60)[0] == 200
