"""The keys that are kept between windows: bounded, spilled, forgotten, and never needed."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest

from sluice_spark.lake.direct.key_cache import ON_DISK, KeyCache
from sluice_spark.lake.direct.key_search import FileKeys

ROWS = 128
SIZE = ROWS * 8


def _keys(number: int, rows: int = ROWS) -> FileKeys:
    return FileKeys(pa.table({"value": pa.array(range(number, number + rows), pa.int64())}))


def _unread() -> FileKeys:
    raise AssertionError("read although it is kept")


def _fill(cache: KeyCache, *numbers: int) -> None:
    for number in numbers:
        cache.get(str(number), lambda number=number: _keys(number))  # type: ignore[misc]


Make = Callable[[int], KeyCache]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache_of(folder: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda ceiling: stack.enter_context(closing(KeyCache(ceiling)))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_memory_stays_below_the_ceiling_and_the_rest_comes_from_disk(folder: Path, cache_of: Make) -> None:
    cache = cache_of(2 * SIZE)
    for number in range(6):
        _fill(cache, number)
        assert cache.used <= 2 * SIZE
    assert (cache.used_on_disk, len(_files(folder))) == (4 * SIZE, 4)
    for number in range(6):
        assert cache.get(str(number), _unread).table.equals(_keys(number).table)
    assert (cache.hits, cache.misses) == (6, 6)
    cache.close()
    assert (_files(folder), cache.used, cache.used_on_disk) == ([], 0, 0)


def test_the_least_recently_used_leaves_memory_first(folder: Path, cache_of: Make) -> None:
    cache = cache_of(2 * SIZE)
    _fill(cache, 1, 2)
    cache.get("1", _unread)
    _fill(cache, 3)
    (spilled,) = _files(folder)
    with pa.memory_map(str(spilled)) as source:
        assert pa.ipc.open_file(source).read_all().equals(_keys(2).table)


def test_disk_has_a_ceiling_too(folder: Path, cache_of: Make) -> None:
    cache = cache_of(SIZE)
    _fill(cache, *range(ON_DISK + 4))
    assert cache.used_on_disk <= ON_DISK * SIZE
    assert len(_files(folder)) == ON_DISK
    _fill(cache, 0)
    assert cache.misses == ON_DISK + 5


def test_keys_from_disk_outlive_their_file(folder: Path, cache_of: Make) -> None:
    cache = cache_of(SIZE)
    _fill(cache, 1, 2)
    kept = cache.get("1", _unread)
    cache.forget(["1"])
    assert _files(folder) == []
    assert kept.table.equals(_keys(1).table)


def test_what_was_forgotten_is_read_again(folder: Path, cache_of: Make) -> None:
    cache = cache_of(SIZE)
    _fill(cache, 1, 2)
    cache.forget(["1", "2", "never seen"])
    assert (cache.used, cache.used_on_disk, _files(folder)) == (0, 0, [])
    _fill(cache, 1)
    assert cache.misses == 3


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")], ids=["gone", "empty"]
)
def test_a_spill_file_that_cannot_be_read_is_a_miss(folder: Path, cache_of: Make, damage: object) -> None:
    cache = cache_of(SIZE)
    _fill(cache, 1, 2)
    (spilled,) = _files(folder)
    damage(spilled)  # type: ignore[operator]
    assert cache.get("1", lambda: _keys(1)).table.equals(_keys(1).table)
    assert (cache.hits, cache.misses) == (0, 3)
    _fill(cache, 3, 4)
    # Spilled anew, and found there.
    assert cache.get("1", _unread).table.equals(_keys(1).table)


def test_a_disk_that_takes_nothing_costs_the_cache_only(
    folder: Path, cache_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    cache = cache_of(SIZE)
    _fill(cache, 1, 2)
    assert (cache.used, cache.used_on_disk) == (SIZE, 0)
    _fill(cache, 1)
    assert cache.misses == 3


def test_without_memory_nothing_is_kept(folder: Path, cache_of: Make) -> None:
    cache = cache_of(0)
    _fill(cache, 1, 1)
    assert (cache.hits, cache.misses, cache.used, _files(folder)) == (0, 2, 0, [])
