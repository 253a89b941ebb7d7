"""Every store keeps the promises of sluice.store.base, word for word."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.errors import ObjectExists, ObjectMissing, StoreRefused, UsageError
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice.store.opening import open_store
from sluice.store.probe import probe
from sluice.store.remote import PAGE_KEYS
from tests.support.killed import run

HOSTILE = [
    *("", "/", "/etc/passwd", "../outside", "a/../../outside", "./a", "a/.", "a//b", "a/"),
    *("a\\b", "a\x00b", "a\nb", "\udcff", "x" * 241, "/".join(["x" * 100] * 10)),
    *(".sluice-half", "a/.sluice-half"),  # what is being written
]


def test_a_create_stores_once_and_a_second_create_changes_nothing(store: ObjectStore) -> None:
    store.create("manifest/1.json", b"first")
    with pytest.raises(ObjectExists):
        store.create("manifest/1.json", b"second")
    with pytest.raises(ObjectExists):
        store.create("manifest/1.json", b"first")
    assert store.get("manifest/1.json") == b"first"


def test_a_put_replaces_what_is_there_and_blocks_a_create(store: ObjectStore) -> None:
    store.put("a", b"a long first version")
    store.put("a", b"second")
    assert store.get("a") == b"second"
    assert store.size("a") == 6
    with pytest.raises(ObjectExists):
        store.create("a", b"third")


def test_of_eight_racing_creates_exactly_one_wins_and_its_content_stays(store: ObjectStore) -> None:
    for number in range(5):
        key, start = f"race/{number}", threading.Barrier(8)

        def run(racer: int, key: str = key, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                store.create(key, b"%d" % racer)
            except ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            winners = [racer for racer, won in enumerate(pool.map(run, range(8))) if won]
        assert len(winners) == 1
        assert store.get(key) == b"%d" % winners[0]


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\r\n\x1a" * 7, bytes(range(256)) * 47_000], ids=["empty", "binary", "12 MB"]
)
def test_content_comes_back_byte_for_byte(store: ObjectStore, content: bytes) -> None:
    store.create("created", memoryview(content))
    store.put("put", content)
    assert store.get("created") == content
    assert store.get("put") == content
    assert store.size("created") == store.size("put") == len(content)


def test_nothing_is_there_before_it_is_written_and_after_it_is_deleted(store: ObjectStore) -> None:
    for _ in range(2):
        with pytest.raises(ObjectMissing):
            store.get("a/b")
        assert store.size("a/b") is None
        assert list(store.list("a/")) == []
        store.delete("a/b")
        store.create("a/b", b"1")
        store.delete("a/b")
    with pytest.raises(ObjectMissing):
        store.get("a")


def test_a_listing_is_sorted_by_whole_keys_and_stays_in_its_folder(store: ObjectStore) -> None:
    for key in ("m/2", "m/10", "m/1", "m/a-b", "m/a/deep/1", "m/a.json", "mm/1", "n", "m-1"):
        store.put(key, b"")
    assert list(store.list("m/")) == ["m/1", "m/10", "m/2", "m/a-b", "m/a.json", "m/a/deep/1"]
    assert list(store.list("m/", after="m/10")) == ["m/2", "m/a-b", "m/a.json", "m/a/deep/1"]
    assert list(store.list("m/", after="m/a-b0")) == ["m/a.json", "m/a/deep/1"]
    assert list(store.list("m/a/")) == ["m/a/deep/1"]
    assert list(store.list("")) == ["m-1", "m/1", "m/10", "m/2", "m/a-b", "m/a.json", "m/a/deep/1", "mm/1", "n"]
    with pytest.raises(StoreRefused):
        store.list("m").__next__()


def test_a_listing_goes_on_past_a_page(store: ObjectStore) -> None:
    keys = [f"m/{number:04d}" for number in range(PAGE_KEYS + 5)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert list(store.list("m/")) == keys
    assert list(store.list("m/", after=keys[10])) == keys[11:]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_that_could_leave_the_prefix_is_refused_by_every_operation(store: ObjectStore, key: str) -> None:
    writes = (lambda key: store.put(key, b""), lambda key: store.create(key, b""))
    for operation in (store.get, store.size, store.delete, *writes):
        with pytest.raises(StoreRefused):
            operation(key)
    assert list(store.list("")) == []


@pytest.mark.parametrize("key", ["data/7/00000001-0000000001.parquet", "a b%c+d=e~f@g", "é/ß/日本", "a~2fb", "x" * 240])
def test_a_key_of_ordinary_characters_is_kept_as_it_is(store: ObjectStore, key: str) -> None:
    store.create(key, b"1")
    assert list(store.list("")) == [key]
    assert store.get(key) == b"1"


def test_the_probe_is_satisfied_and_leaves_nothing(store: ObjectStore) -> None:
    probe(store)
    assert list(store.list("")) == []


class IgnoresTheHeader(MemoryStore):
    def create(self, key: str, data: bytes | memoryview) -> None:
        self.put(key, data)


class ChecksBeforeItWrites(MemoryStore):
    """Lets two racers that check at the same time both win, as some servers do."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.both_have_checked = threading.Barrier(2)

    def create(self, key: str, data: bytes | memoryview) -> None:
        if self.size(key) is not None:
            raise ObjectExists(key)
        if "race" in key:
            self.both_have_checked.wait(10)
        self.put(key, data)


class ListsLate(MemoryStore):
    def list(self, prefix: str, *, after: str = "") -> object:  # type: ignore[override]
        return iter(list(super().list(prefix, after=after))[1:])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (IgnoresTheHeader, "a second create"),
        (ChecksBeforeItWrites, "of 4 racing creates"),
        (ListsLate, "does not list"),
    ],
)
def test_the_probe_names_the_promise_that_does_not_hold(kind: type[MemoryStore], what: str) -> None:
    with pytest.raises(StoreRefused, match=what):
        probe(kind(kind.__name__))


ACCOUNT, UNSIGNED = "account.dfs.core.windows.net", {"azure_skip_signature": "true"}
PLAIN = {"aws_allow_http": "true", "AWS_ENDPOINT": "http://127.0.0.1:1"}
S3 = {"region": "us-east-1", "access_key_id": "k", "secret_access_key": "hidden"}


@pytest.mark.parametrize(
    ("uri", "options", "described"),
    [
        ("file:///var/lib/sluice/spool", {}, "file:///var/lib/sluice/spool/shop/"),
        ("file:///var/lib/sl%20uice/", {}, "file:///var/lib/sl uice/shop/"),
        ("file://localhost/x", {}, "file:///x/shop/"),
        ("memory://name", {}, "memory://name/shop/"),
        ("s3://bucket", S3, "s3://bucket/shop/"),
        ("s3://bucket/a/b/", {**S3, **PLAIN}, "s3://bucket/a/b/shop/"),
        ("gs://bucket/a", {"google_skip_signature": "true"}, "gs://bucket/a/shop/"),
        ("az://container/a", {**UNSIGNED, "azure_storage_account_name": "account"}, "az://container/a/shop/"),
        (f"abfss://container@{ACCOUNT}/a", UNSIGNED, f"abfss://container@{ACCOUNT}/a/shop/"),
    ],
)
def test_each_kind_of_uri_opens_below_the_pipeline(uri: str, options: dict[str, str], described: str) -> None:
    store = open_store(uri, prefix="shop/", options=options)
    assert store.describe() == described
    assert "hidden" not in store.describe() + repr(store)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("/var/lib/spool", {}),
        ("ftp://host/x", {}),
        ("file://host/x", {}),
        ("file:x", {}),
        ("file:///a/../b", {}),
        ("file:///a?b=hidden", {}),
        ("s3://", {}),
        ("s3://key:hidden@bucket/x", {}),
        ("s3://hidden@bucket/x", {}),
        ("s3://bucket/x?token=hidden", {}),
        ("s3://bucket/../x", {}),
        ("s3://bucket", {"no_such_option": "hidden"}),
        ("s3://bucket", {"timeout": "hidden"}),
        ("s3://bucket", {"aws_proxy_url": "hidden"}),
        ("s3://bucket", {"allow_http": "hidden"}),
        ("s3://bucket", {"virtual_hosted_style_request": "hidden"}),
        ("az://container/x", {}),
        ("http://[", {}),
    ],
)
def test_what_cannot_be_opened_is_refused_without_its_secrets(uri: str, options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(uri, options=options)
    assert "hidden" not in str(raised.value) + raised.value.hint


@pytest.mark.parametrize("prefix", ["shop", "/", "../", "a/../", "/shop/"])
def test_a_prefix_that_is_no_folder_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError):
        open_store("memory://x", prefix=prefix, options={})


def test_memory_stores_of_one_name_share_their_objects_and_prefixes_keep_apart() -> None:
    one, same = open_store("memory://shared", prefix="a/", options={}), open_store("memory://shared/a", options={})
    other = open_store("memory://shared", prefix="ab/", options={})
    one.put("k", b"1")
    assert same.get("k") == b"1"
    assert list(other.list("")) == []


@pytest.mark.parametrize("point", ["store.create.before", "store.create.after", "store.put.before", "store.put.after"])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_fault_before_a_write_leaves_nothing_and_after_it_everything(tmp_path: Path, point: str, kind: str) -> None:
    script = f"""
from sluice.errors import StoreUnavailable
from sluice.store.opening import open_store
store = open_store({"memory://x" if kind == "memory" else f"file://{tmp_path}"!r}, options={{}})
try:
    store.{point.split(".")[1]}("k", b"1")
except StoreUnavailable:
    print("unavailable", store.size("k"))
"""
    result = run(script, f"{point}=raise")
    assert result.stdout.split() == ["unavailable", "1" if "after" in point else "None"], result.stderr
