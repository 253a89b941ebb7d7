"""Every store keeps the promises of sluice.store.base, word for word."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.errors import ObjectExists, ObjectMissing, StoreRefused
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice.store.probe import probe
from sluice.store.remote import PAGE_KEYS

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
