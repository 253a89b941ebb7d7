"""moto as a server of its own on 127.0.0.1, with one conditional write at a time, and listings that no deletion fails.
Its argument is the port.

moto compares a condition and stores the object in two steps, and threads of a busy machine come in between: two
writers that create one key then both succeed. For a listing it reads the names of a bucket, and then each of its
objects: one that was deleted in between made the answer an error.
"""

import io
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.utils import _VersionedKeyStore
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH")


class OneAtATime:
    """The WSGI application `application`, which is called by one thread at a time to write under a condition."""

    def __init__(self, application: "WSGIApplication") -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" or not any(condition in environ for condition in CONDITIONS):
            return self._application(environ, start_response)
        if length := environ.get("CONTENT_LENGTH"):
            # A client that sends slowly holds nobody up.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._lock:
            return list(self._application(environ, start_response))


def _stored(keys: "dict[str, list[Any]]") -> Iterator[tuple[str, Any]]:
    """The newest version of each object, as of now."""
    for name, versions in list(dict.items(keys)):
        if newest := versions[-1:]:
            yield name, newest[0]


def list_as_of_now() -> None:
    """From now on a listing has the objects that were there when it began."""
    _VersionedKeyStore.items = _stored  # type: ignore[assignment]  # its parameter is called self


def main() -> None:
    """Serves until it is stopped."""
    list_as_of_now()
    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), OneAtATime(moto), threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
