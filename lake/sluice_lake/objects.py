"""The few objects beside the tables that are read from the lake's store.

Invariant: errors of the library leave this module as LakeUnavailable, without its text, which may repeat an option.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from sluice_lake.errors import LakeMissing, LakeUnavailable, UnusableArgument

T = TypeVar("T")
_PATIENCE: dict[str, Any] = {"timeout": timedelta(seconds=20), "connect_timeout": timedelta(seconds=5)}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
"""Who waits for a position has a time of its own, and a store that hangs must not take minutes of it."""
_SPELLED = {"s3a": "s3", "abfs": "abfss"}


class Objects:
    """What lies below `uri`. `options` are named as for `deltalake`."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = _plain(uri)
        self._options = dict(options)
        self._store = self._opened()

    def get(self, key: str) -> bytes | None:
        """The object at `key`, None if there is none. Raises LakeUnavailable."""
        try:
            return self._asked(lambda: bytes(obstore.get(self._store, key).bytes()))
        except FileNotFoundError:
            return None

    def below(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders and of the objects in `folder`, sorted. Raises LakeUnavailable."""
        try:
            found = self._asked(lambda: obstore.list_with_delimiter(self._store, folder.rstrip("/")))
        except FileNotFoundError:
            return [], []
        folders = sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])
        return folders, sorted(one["path"].rpartition("/")[2] for one in found["objects"])

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise LakeUnavailable(
                f"the lake at {self.uri} did not answer ({type(error).__name__})",
                hint="check its address, the options of its store, and the rights to list and read it",
            ) from None

    def _opened(self) -> Any:
        if "://" not in self.uri:
            return LocalStore(self.uri)
        try:
            http = {name: value for name, value in self._options.items() if name.lower().endswith("allow_http")}
            rest: Any = {name: value for name, value in self._options.items() if name not in http}
            allowed = any(value.lower() == "true" for value in http.values())
            client: Any = {"allow_http": allowed, **_PATIENCE}
            return from_url(self.uri, config=rest, client_options=client, retry_config=_RETRIES)
        except (BaseError, ValueError, TypeError) as error:
            raise UnusableArgument(
                f"the lake at {self.uri} cannot be opened ({type(error).__name__})",
                hint="an address is s3://bucket/path, gs://..., az://..., abfss://... or a directory, and options "
                "are named as for deltalake",
            ) from None


def _plain(uri: str) -> str:
    """`uri` as delta-rs takes it: a directory as its path. Raises UnusableArgument."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme else uri)
        if not path.is_dir():
            hint = "lake.uri of the pipeline names it, and the applier makes it with the first table"
            raise LakeMissing(f"there is no directory {path}", hint=hint)
        return str(path.resolve())
    if parts.username is not None and parts.scheme not in ("abfss", "abfs"):
        raise UnusableArgument("the lake's address holds credentials", hint="give them as options")
    return f"{_SPELLED.get(parts.scheme, parts.scheme)}://{parts.netloc}{parts.path}".rstrip("/")
