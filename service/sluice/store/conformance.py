"""What `check` asks of an object store: thirteen calls (five of a local folder), those that Sluice stands
on and those that Spark and other tools make.

Invariant: each call is tried on objects of our own below `probe/`, none of the pipeline's is
touched, and one that fails names itself without keeping the others from being tried. What the
library cannot ask (lifecycle rules, default encryption) is said, with the command that tells.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, PreconditionError

from sluice.errors import StoreError, StoreRefused
from sluice.findings import Finding, Severity
from sluice.store import probe
from sluice.store.base import ObjectStore
from sluice.store.remote import PART_BYTES, Backend, RemoteStore, translated

Outcome = Literal["passed", "failed", "not asked"]
CLOCK_SKEW_S = 60.0
"""S3 refuses requests whose time is a quarter of an hour off."""
_LOOPBACK = ("localhost", "127.", "[::1]")


@dataclass(frozen=True, slots=True)
class Call:
    """One of them, and how it went. `seen` says why it did not pass."""

    name: str
    outcome: Outcome
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Conformance:
    """All that was asked of one store. `not_examined` has (what, how to see it) for what cannot be
    asked.
    """

    calls: list[Call]
    findings: list[Finding]
    not_examined: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    code: str
    severity: Severity
    run: Callable[[], None]


def examine(store: ObjectStore, *, options: Mapping[str, str], now: Callable[[], float] = time.time) -> Conformance:
    """Tries every call. `options` are those that the store was opened with."""
    folder = probe.own_folder()
    calls: list[Call] = []
    findings = list(_plain(store, options))
    reached = _reach(store, folder)
    if reached is not None:
        return Conformance(calls, [*findings, reached], [])
    steps = [*_own_steps(store, folder), *_raw_steps(store, folder, now=now)]
    try:
        for step in steps:
            call, finding = _tried(store, step)
            calls.append(call)
            findings += [finding] if finding else []
    finally:
        with contextlib.suppress(StoreError):
            # Those of others, too, that ended or gave up before they came as far as this.
            for key in [*store.list(folder), *probe.abandoned(store)]:
                store.delete(key)
    if not isinstance(store, RemoteStore):
        calls += [Call(name, "not asked", "only remote stores have it") for name in _RAW_NAMES]
    return Conformance(calls, findings, _unasked(store))


def _reach(store: ObjectStore, folder: str) -> Finding | None:
    try:
        store.put(f"{folder}reach", b"reach")
        store.get(f"{folder}reach")
    except StoreError as error:
        return Finding("critical", "store.reach", store.describe(), str(error), fix_setting=error.hint)
    return None


def _tried(store: ObjectStore, step: _Step) -> tuple[Call, Finding | None]:
    try:
        step.run()
    except StoreError as error:
        finding = Finding(step.severity, step.code, store.describe(), str(error), fix_setting=error.hint)
        return Call(step.name, "failed", str(error)), finding
    return Call(step.name, "passed"), None


def _own_steps(store: ObjectStore, folder: str) -> Iterator[_Step]:
    """Through ObjectStore, as the pipeline does."""
    yield _Step("create once", "store.create", "critical", lambda: probe.create_only(store, f"{folder}once"))
    yield _Step("one winner among racing creates", "store.create", "critical", lambda: _races(store, folder))
    yield _Step(
        "overwrite and read back", "store.overwrite", "critical", lambda: probe.overwrite(store, f"{folder}overwrite")
    )
    yield _Step("list in order", "store.list", "critical", lambda: _listing(store, f"{folder}list/"))
    yield _Step("delete", "store.delete", "warning", lambda: _delete(store, f"{folder}delete"))


def _races(store: ObjectStore, folder: str) -> None:
    for number in range(probe.ROUNDS):
        probe.race(store, f"{folder}race-{number}")


def _listing(store: ObjectStore, folder: str) -> None:
    keys = [f"{folder}{name}" for name in ("1", "10", "2", "a-b")]
    for key in keys:
        store.put(key, b"")
    probe.listing(store, folder, keys)


def _delete(store: ObjectStore, key: str) -> None:
    store.put(key, b"")
    store.delete(key)
    if store.size(key) is not None:
        raise StoreRefused(f"{store.describe()} still shows an object that it deleted")


_RAW_NAMES = (
    "multipart upload",
    "read a range",
    "list folders",
    "refuse a wrong ETag",
    "accept the right ETag",
    "copy",
    "delete several at once",
)


def _raw_steps(store: ObjectStore, folder: str, *, now: Callable[[], float]) -> Iterator[_Step]:
    """Past ObjectStore: what Spark, VACUUM and other writers ask of the same bucket."""
    if not isinstance(store, RemoteStore):
        return
    raw = _Raw(store, folder, now)
    runs = (raw.multipart, raw.range, raw.folders, raw.wrong_etag, raw.right_etag, raw.copy, raw.delete_several)
    codes: tuple[tuple[str, Severity], ...] = (
        ("store.multipart", "critical"),
        ("store.range", "critical"),
        ("store.delimiter", "critical"),
        ("store.etag", "info"),
        ("store.etag", "info"),
        ("store.copy", "warning"),
        ("store.bulk_delete", "warning"),
    )
    for name, (code, severity), run in zip(_RAW_NAMES, codes, runs, strict=True):
        yield _Step(name, code, severity, raw.guarded(name, run))
    yield _Step("clock", "store.clock", "warning", raw.guarded("clock", raw.clock))


class _Raw:
    """Calls of the library itself, on objects of one folder."""

    def __init__(self, store: RemoteStore, folder: str, now: Callable[[], float]) -> None:
        self._store = store
        self._backend: Backend = store.backend
        self._folder = folder
        self._now = now

    def guarded(self, name: str, run: Callable[[], None]) -> Callable[[], None]:
        """`run` with the library's errors as ours."""

        def call() -> None:
            try:
                run()
            except (BaseError, OSError, ValueError, NotImplementedError) as error:
                raise translated(error, operation=name, what=f"{name} in {self._store.describe()}") from None

        return call

    def multipart(self) -> None:
        content = bytes(PART_BYTES + 1)
        self._store.put(f"{self._folder}large", content)
        self._require(
            self._store.size(f"{self._folder}large") == len(content), "does not keep an object that was sent in parts"
        )

    def range(self) -> None:
        self._store.put(f"{self._folder}range", b"0123456789")
        read = self._backend.get_range(f"{self._folder}range", start=3, end=6).to_bytes()
        self._require(read == b"345", "does not return the range that was asked for")

    def folders(self) -> None:
        for name in ("top", "below/one", "below/two"):
            self._store.put(f"{self._folder}tree/{name}", b"")
        seen = self._backend.list_with_delimiter(f"{self._folder}tree/")
        names = (
            [meta["path"].rpartition("/")[2] for meta in seen["objects"]],
            [path.rstrip("/").rpartition("/")[2] for path in seen["common_prefixes"]],
        )
        self._require(names == (["top"], ["below"]), "does not list one folder by itself")

    def wrong_etag(self) -> None:
        key = f"{self._folder}etag"
        self._store.put(key, b"first")
        with contextlib.suppress(PreconditionError):
            self._backend.put(key, b"second", mode={"e_tag": '"00000000000000000000000000000000"'}, use_multipart=False)
        self._require(self._store.get(key) == b"first", "ignores If-Match: it replaced an object that was another one")

    def right_etag(self) -> None:
        key = f"{self._folder}etag"
        etag = self._backend.head(key)["e_tag"]
        self._require(etag is not None, "gives no ETags")
        self._backend.put(key, b"second", mode={"e_tag": str(etag)}, use_multipart=False)
        self._require(self._store.get(key) == b"second", "does not replace an object whose ETag is right")

    def copy(self) -> None:
        self._store.put(f"{self._folder}copied", b"content")
        self._backend.copy(f"{self._folder}copied", f"{self._folder}copy", overwrite=True)
        self._require(self._store.get(f"{self._folder}copy") == b"content", "does not copy what is there")

    def delete_several(self) -> None:
        keys = [f"{self._folder}bulk-{number}" for number in range(3)]
        for key in keys:
            self._store.put(key, b"")
        self._backend.delete(keys)
        self._require(all(self._store.size(key) is None for key in keys), "still shows objects that it deleted")

    def clock(self) -> None:
        key = f"{self._folder}clock"
        before = self._now()
        self._store.put(key, b"")
        skew = self._backend.head(key)["last_modified"].timestamp() - before
        self._require(
            abs(skew) <= CLOCK_SKEW_S,
            f"has a clock that is {skew:+.0f} s from ours",
            hint="synchronize this machine's clock",
        )

    def _require(self, holds: bool, what: str, *, hint: str = "") -> None:  # noqa: FBT001 - one claim
        if not holds:
            raise StoreRefused(f"{self._store.describe()} {what}", hint=hint or "see docs/findings.md for who needs it")


def _plain(store: ObjectStore, options: Mapping[str, str]) -> Iterator[Finding]:
    """Requests without TLS over a network."""
    for name, value in options.items():
        parts = urlsplit(value)
        if (
            name.lower().endswith(("endpoint", "endpoint_url"))
            and parts.scheme == "http"
            and not parts.netloc.startswith(_LOOPBACK)
        ):
            seen = f"its endpoint {parts.netloc} is reached by http: rows cross the network unencrypted"
            yield Finding(
                "warning", "store.plain", store.describe(), seen, fix_setting="an https endpoint, and no allow_http"
            )


def _unasked(store: ObjectStore) -> list[tuple[str, str]]:
    if not isinstance(store, RemoteStore):
        return []
    parts = urlsplit(store.describe())
    if parts.scheme == "s3":
        show = f"aws s3api get-bucket-%s --bucket {parts.netloc}"
        lifecycle, encryption = show % "lifecycle-configuration", show % "encryption"
    elif parts.scheme == "gs":
        lifecycle = encryption = f"gcloud storage buckets describe gs://{parts.netloc}"
    else:
        lifecycle, encryption = "az storage account management-policy show", "az storage account show"
    where = f"below {store.describe()}"
    return [
        (
            (
                f"whether a lifecycle rule deletes or archives objects {where} (it must not, because "
                "only Sluice may delete from the spool)"
            ),
            lifecycle,
        ),
        (f"whether objects {where} are encrypted by default, and with whose key", encryption),
    ]
