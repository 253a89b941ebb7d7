"""Objects in S3, Google Cloud Storage or Azure Blob Storage, through obstore.

Invariant: a library error becomes one of our four and says nothing that could be a secret; only an
answer that proves it becomes ObjectExists or ObjectMissing. 412 proves that something exists; 409
is a conflict in flight, which the library calls the same, and is StoreUnavailable here (except
Azure's BlobAlreadyExists). 404 proves that nothing exists only when the store says so itself: a
gateway without a route answers 404 as well, and so does S3 about an upload in parts that is over
(NoSuchUpload), be it because its completion was carried out and the answer lost. A full store (507)
is StoreUnavailable: the pipeline pauses. What worked before and is refused now is StoreUnavailable
for a while as well (see `refused_operations`). The identity used needs to list the bucket: without that right
S3 answers 403 instead of 404 for a missing object, which is StoreRefused here.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from sluice import faults
from sluice.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused, StoreUnavailable
from sluice.store.base import checked_key, checked_prefix
from sluice.store.refused_operations import RefusedOperations

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig  # exist for the type checker only

CLIENT: "ClientConfig" = {
    "connect_timeout": timedelta(seconds=5),
    # For a whole request: a 128 MiB segment in one part at 2 MB/s still fits. The library's default
    # is 30 s.
    "timeout": timedelta(seconds=75),
}
RETRY: "RetryConfig" = {
    # For 5xx, throttling and broken connections. Short, because every caller has its own deadline
    # and reads back when in doubt; the library's default (10 retries in 3 minutes) would outlive
    # PostgreSQL's wal_sender_timeout of 60 s many times over.
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
PART_BYTES = 8 * 1024 * 1024
"""An overwrite larger than this goes up in parts; a create is always one request."""
PARTS_AT_ONCE = 4
PAGE_KEYS = 1000
"""S3's own page size."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_REFUSED_DELETE = re.compile(r"\(code: AccessDenied\)")
"""One of several deletes in one request, whose own status is 200."""
_NO_ANSWER_BODY = re.compile(r"status code: 404[^:]{0,40}:\s*(?:Debug source|$)")
"""What a HEAD is answered with: nobody but the status to ask."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Why the TLS library does not accept the one that the store shows."""
_NO_CONTAINER = frozenset({"NoSuchBucket", "ContainerNotFound"})
_NO_OBJECT = frozenset({"NoSuchKey", "BlobNotFound", "ResourceNotFound", "PathNotFound"})
_PASSING = frozenset({408, 409, 425, 429})
_PASSING_CODES = frozenset(
    {"RequestTimeout", "NoSuchUpload", "IncompleteBody", "BadDigest", "InvalidPart", "OperationAborted"}
)
"""Answers about one try, whatever their status: the next try begins from nothing."""
_NOT_IMPLEMENTED = 501

Backend = S3Store | GCSStore | AzureStore


class RemoteStore:
    """ObjectStore over one obstore backend, whose own prefix is the root."""

    def __init__(self, backend: Backend, *, uri: str, refusals: RefusedOperations | None = None) -> None:
        self._backend = backend
        self._uri = uri
        self._refusals = refusals or RefusedOperations()

    @property
    def backend(self) -> Backend:
        """For what the conformance suite asks of a store beyond ObjectStore."""
        return self._backend

    def get(self, key: str) -> bytes:
        with self._translated("get", key):
            return self._backend.get(checked_key(key)).bytes().to_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if not length:
            return b""
        with self._translated("get", key):
            return self._backend.get_range(checked_key(key), start=start, length=length).to_bytes()

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._translated("put", key):
            faults.point("store.put.before")
            self._backend.put(
                checked_key(key), data, mode="overwrite", chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
            faults.point("store.put.after")

    def create(self, key: str, data: bytes | memoryview) -> None:
        with self._translated("create", key):
            faults.point("store.create.before")
            self._backend.put(checked_key(key), data, mode="create", use_multipart=False)
            faults.point("store.create.after")

    def size(self, key: str) -> int | None:
        try:
            with self._translated("size", key):
                return self._backend.head(checked_key(key))["size"]
        except ObjectMissing:
            return None

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        pages = self._backend.list(checked_prefix(prefix) or None, offset=after or None, chunk_size=PAGE_KEYS)
        last = ""
        while True:
            with self._translated("list", prefix):
                page = next(pages, None)
            if page is None:
                return
            for meta in page:
                key = meta["path"]
                if key <= last:
                    raise StoreRefused(
                        f"list of {prefix!r} in {self._uri}: keys do not ascend",
                        hint="use a general purpose bucket, not a directory bucket",
                    )
                last = key
                # A store may begin with `after` itself, or before it: Azurite knows no start.
                if key > after:
                    yield key

    def delete(self, key: str) -> None:
        with contextlib.suppress(ObjectMissing), self._translated("delete", key):
            self._backend.delete(checked_key(key))

    def describe(self) -> str:
        return self._uri

    @contextlib.contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            meant = translated(error, operation=operation, what=f"{operation} of {key!r} in {self._uri}")
            if isinstance(meant, ObjectExists | ObjectMissing):
                self._refusals.worked(operation, key)
            elif isinstance(meant, StoreRefused) and not isinstance(error, ValueError):
                meant = self._refusals.judged(meant, operation, key)
            raise meant from error
        self._refusals.worked(operation, key)


def translated(error: Exception, *, operation: str, what: str) -> StoreError:
    """Our error for one of obstore's, whose own text may hold URLs and server answers and is only
    searched, never repeated.
    """
    text = str(error)
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match[1]) if status_match else 0
    code = code_match[1] if code_match else ""
    reason = f"{what}: " + (f"status {status} {code}".rstrip() if status else "no usable answer")
    if code in _NO_CONTAINER:
        return StoreRefused(reason, hint="create the bucket or container, or correct the URI")
    said_so = not status or code in _NO_OBJECT or _NO_ANSWER_BODY.search(text)
    if operation in ("get", "size", "delete") and isinstance(error, FileNotFoundError) and said_so:
        return ObjectMissing(f"{what}: no such object")
    if (
        isinstance(error, AlreadyExistsError)
        and operation == "create"
        and (status != 409 or code == "BlobAlreadyExists")
    ):
        return ObjectExists(f"{what}: an object exists already")
    if isinstance(error, ValueError):
        return StoreRefused(f"{what}: not a key for this store")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED_DELETE.search(text):
        return StoreRefused(reason, hint="check credentials, their expiry, the policy and this machine's clock")
    if not status and (certificate := _CERTIFICATE.search(text)):
        # It is renewed without us.
        return StoreUnavailable(
            f"{what}: the certificate of the store is not accepted ({certificate[1]})",
            hint="renew it at the store; for an authority of your own, let SSL_CERT_FILE name the file with its "
            "certificate, which is read at a start",
        )
    if _may_pass(status, code=code, text=text):
        return StoreUnavailable(
            reason, hint="the store did not answer, or asked to slow down; if this lasts, check network and endpoint"
        )
    if status == 404:
        return StoreRefused(
            reason, hint="the bucket or container does not exist, or the endpoint is not an object store"
        )
    return StoreRefused(reason, hint="check endpoint, region, bucket and credentials")


def _may_pass(status: int, *, code: str, text: str) -> bool:
    if not status:
        return "redirect" not in text
    return code in _PASSING_CODES or status in _PASSING or (status >= 500 and status != _NOT_IMPLEMENTED)
