"""From a URI in the configuration to an ObjectStore.

`file:///path`, `memory://name`, `s3://bucket/path`, `gs://bucket/path`, `az://container/path`,
`abfss://container@account.dfs.core.windows.net/path`. Options carry obstore's configuration names
(`aws_endpoint`, `aws_region`, `aws_access_key_id`, `azure_storage_account_name`, ...); what they
leave out comes from the provider's usual environment variables, workload identity included. It must
not put a secret in a URI, a message or a description.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from sluice.errors import StoreRefused, UsageError
from sluice.store.base import ObjectStore, checked_key, checked_prefix
from sluice.store.local import LocalStore
from sluice.store.memory import MemoryStore
from sluice.store.remote import CLIENT, RETRY, Backend, RemoteStore
from sluice.store.rotation import RotatingKeys, is_key

if TYPE_CHECKING:
    from obstore.store import ClientConfig  # exists for the type checker only

_REMOTE: dict[str, type[S3Store] | type[GCSStore] | type[AzureStore]] = {
    "s3": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
    "abfss": AzureStore,
}
_VENDOR = ("aws_", "google_", "azure_")
_CLIENT_OPTIONS = frozenset(
    {
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
"""obstore's client options that Sluice decides itself. In a store's configuration they make obstore
panic, so they are refused by name.
"""


def open_store(
    uri: str, *, prefix: str = "", options: Mapping[str, str], reread: Callable[[], Mapping[str, str]] | None = None
) -> ObjectStore:
    """The store for `<uri>/<prefix>`. `prefix` is empty or a folder with its slash. `reread` returns
    the options as they are now, and does not raise: keys of S3 are then taken from it. Raises
    UsageError; contacts nothing yet.
    """
    parts = _split(uri)
    try:
        checked_prefix(prefix)
        if parts.path.strip("/"):
            checked_key(unquote(parts.path).strip("/"))
    except StoreRefused as error:
        raise UsageError(f"not a usable place for a store: {_shown(parts)}", hint=error.hint) from error
    if parts.scheme == "file":
        return LocalStore(_directory(parts) / prefix)
    if parts.scheme == "memory":
        return MemoryStore(parts.netloc, prefix=f"{parts.path.strip('/')}/{prefix}".lstrip("/"))
    if parts.scheme in _REMOTE:
        root = f"{uri.rstrip('/')}/{quote(prefix)}"
        return RemoteStore(_backend(parts, root=root, options=options, reread=reread), uri=root)
    raise UsageError(
        f"unknown kind of store {parts.scheme!r}", hint="use file://, memory://, s3://, gs://, az:// or abfss://"
    )


def _split(uri: str) -> SplitResult:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UsageError("a store URI cannot be read") from error
    if not parts.scheme:
        raise UsageError("a store URI has no scheme", hint="a local directory is file:///absolute/path")
    if parts.password is not None or (parts.username is not None and parts.scheme != "abfss"):
        raise UsageError(
            f"a {parts.scheme}:// URI holds credentials", hint="give them as options or in the environment"
        )
    if parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise UsageError(
            f"a {parts.scheme}:// URI has a query or a fragment", hint="in a path write ? as %3F and # as %23"
        )
    return parts


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _directory(parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise UsageError(
            f"not a local directory: {_shown(parts)}",
            hint="a local directory is file:///absolute/path, with three slashes",
        )
    return path


def _backend(
    parts: SplitResult, *, root: str, options: Mapping[str, str], reread: Callable[[], Mapping[str, str]] | None
) -> Backend:
    client: ClientConfig = {**CLIENT}
    config: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower()
        for vendor in _VENDOR:
            plain = plain.removeprefix(vendor)
        if plain == "allow_http":
            client["allow_http"] = _claim(name, value)
        elif plain in _CLIENT_OPTIONS:
            raise UsageError(f"store option {name!r} is not supported")
        else:
            config[name.lower()] = value
    rotating: dict[str, Any] = {}
    if reread is not None and parts.scheme == "s3" and any(is_key(name) for name in config):
        config = {name: value for name, value in config.items() if not is_key(name)}
        rotating["credential_provider"] = RotatingKeys(reread)
    try:
        return _REMOTE[parts.scheme].from_url(
            root,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=RETRY,
            **rotating,
        )
    except (BaseError, ValueError) as error:
        # The library's text may repeat an option's value.
        raise UsageError(
            f"the options for {_shown(parts)} are not accepted ({type(error).__name__}): "
            f"{', '.join(sorted(options)) or 'none given'}"
        ) from error


def _claim(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"store option {name!r} is neither true nor false")
    return value.lower() == "true"
