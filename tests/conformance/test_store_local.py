"""What only the local store must prove: durability on disk, whole objects through kills, and no way out of its root."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sluice.errors import ObjectExists, StoreRefused
from sluice.store.local import LocalStore
from tests.support import commands

REPOSITORY = Path(__file__).parents[2]


def _run(
    script: str, *arguments: object, wrapper: tuple[str, ...] = (), **environment: str
) -> "subprocess.CompletedProcess[str]":
    command = [*wrapper, sys.executable, "-c", script, *map(str, arguments)]
    return commands.ended(*command, cwd=REPOSITORY, env={**os.environ, **environment})


class SystemCalls:
    """The calls of `os` that decide about durability, in order, with the path they were made for."""

    NAMES = ("fsync", "link", "rename", "replace", "mkdir")

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", "") == "posix" and called.__name__ in self.NAMES:
            local = frame.f_locals
            path = (
                Path(f"/proc/self/fd/{local['descriptor']}").readlink()
                if called.__name__ == "fsync"
                else local.get("self", local.get("path"))
            )
            self.seen.append((called.__name__, str(path)))

    def __enter__(self) -> list[tuple[str, str]]:
        sys.setprofile(self)
        return self.seen

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


@pytest.mark.parametrize("operation", ["put", "create"])
def test_file_and_folder_and_every_new_folder_are_synced_before_a_write_returns(tmp_path: Path, operation: str) -> None:
    root = tmp_path / "new" / "spool"
    store = LocalStore(root)
    with SystemCalls() as calls:
        getattr(store, operation)("data/7/a.parquet", b"content")
    synced = [path for name, path in calls if name == "fsync"]
    # Each folder's own name is durable before anything is put into it, the folder above an old root
    # included.
    assert synced[:-2] == [str(tmp_path), str(tmp_path / "new"), str(root), str(root / "data")]
    file, folder = synced[-2:]
    assert file.startswith(str(root / "data/7/.sluice-"))
    assert folder == str(root / "data/7")
    into_place = next(index for index, (name, _) in enumerate(calls) if name in ("link", "rename", "replace"))
    assert calls.index(("fsync", file)) < into_place < len(calls) - 1 == calls.index(("fsync", folder))


def test_what_a_create_found_is_synced_too_before_it_says_so(tmp_path: Path) -> None:
    LocalStore(tmp_path).create("m/1", b"left by a process that was killed before it could sync the folder")
    store = LocalStore(tmp_path)
    with SystemCalls() as calls, pytest.raises(ObjectExists):
        store.create("m/1", b"mine")
    assert calls[-1] == ("fsync", str(tmp_path / "m"))


FAILING_SYNC = """
import sys
from pathlib import Path
from sluice.errors import ServiceError
from sluice.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
def attempt(key):
    try:
        store.create(key, b"content")
        print("stored")
    except ServiceError as error:
        print(type(error).__name__)
attempt("warm"); attempt("a"); attempt("a"); attempt("b")
print(*store.list(""))
"""
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None
    or subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs strace and the right to trace",
)


@needs_strace
@pytest.mark.parametrize(("call", "when", "outcome"), [
    # fsync of: 1 the folder above the root, 2 and 3 file and folder of `warm`, 4 and 5 of the first
    # `a`
    ("fsync:error=EIO", 4, ["stored", "StoreUnavailable", "stored", "stored", "a b warm"]),
    ("fsync:error=EIO", 5, ["stored", "StoreUnavailable", "StoreRefused", "StoreRefused", "a warm"]),
    ("fsync:error=ENOSPC", 4, ["stored", "StoreUnavailable", "stored", "stored", "a b warm"]),
    ("linkat,link:error=ENOSPC", 2, ["stored", "StoreUnavailable", "stored", "stored", "a b warm"]),
    ("linkat,link:error=EROFS", 2, ["stored", "StoreRefused", "stored", "stored", "a b warm"]),
])  # fmt: skip
def test_a_failed_sync_is_never_repeated_on_the_same_file(
    tmp_path: Path, call: str, when: int, outcome: list[str]
) -> None:
    result = _run(
        FAILING_SYNC, tmp_path, wrapper=("strace", "-f", "-o", "/dev/null", "-e", f"inject={call}:when={when}")
    )
    assert result.stdout.splitlines() == outcome, result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


WRITE_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from sluice.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
for number in itertools.count():
    key = f"{sys.argv[2]}/{number:06d}"
    (store.put if number % 2 else store.create)(key, b"%06d" % number * 50_000)
    print(key, flush=True)
"""


def test_kill_9_leaves_whole_objects_only_and_none_that_was_confirmed_is_missing(tmp_path: Path) -> None:
    confirmed: list[str] = []
    for attempt in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path), str(attempt)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        confirmed += [writer.stdout.readline().strip() for _ in range(3 + attempt)]
        writer.send_signal(signal.SIGKILL)
        confirmed += writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
    store = LocalStore(tmp_path)
    listed = list(store.list(""))
    assert set(confirmed) <= set(listed)
    for key in listed:
        assert store.get(key) == key[-6:].encode() * 50_000


CREATE_ALL = """
import sys
from pathlib import Path
from sluice.errors import ObjectExists
from sluice.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
sys.stdin.readline()
for number in range(60):
    try:
        store.create(f"deep/{number % 7}/{number}", sys.argv[2].encode())
        print(number)
    except ObjectExists:
        pass
"""


def test_of_processes_that_race_for_a_key_exactly_one_wins(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CREATE_ALL, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([*command, str(name)], cwd=REPOSITORY, **pipes) for name in range(3)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [[int(number) for number in racer.communicate(timeout=60)[0].split()] for racer in racers]
    assert sorted(number for numbers in won for number in numbers) == list(range(60))
    store = LocalStore(tmp_path)
    for name, numbers in enumerate(won):
        assert all(store.get(f"deep/{number % 7}/{number}") == b"%d" % name for number in numbers)


def test_no_key_leads_out_through_a_symbolic_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_bytes(b"not yours")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    store = LocalStore(root)
    writes = (lambda key: store.put(key, b""), lambda key: store.create(key, b""))
    for operation in (store.get, store.size, store.delete, *writes, lambda _: store.list("folder/")):
        with pytest.raises(StoreRefused):
            operation("folder/secret")
    with pytest.raises(StoreRefused):
        store.get("file")
    store.put("file", b"ours")
    assert (outside / "secret").read_bytes() == b"not yours"
    assert list(store.list("")) == ["file"]


def test_unfinished_writes_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("m/1", b"")
    (tmp_path / "m" / ".sluice-0123").write_bytes(b"half")
    assert list(store.list("m/")) == ["m/1"]


def test_reading_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "spool")
    assert list(store.list("manifest/")) == []
    assert store.size("a") is None
    assert not (tmp_path / "spool").exists()


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"")
    with pytest.raises(StoreRefused, match="create of 'a/b'"):
        LocalStore(tmp_path / "spool").create("a/b", b"")
