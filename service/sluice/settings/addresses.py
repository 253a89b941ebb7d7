"""Addresses as people write them: of object stores, to listen on, of web pages.

Invariant: an address of a store that holds credentials is refused. Each function returns the address in its one
spelling, or raises ValueError with what is allowed. Must not know any setting by name.
"""

import re
from urllib.parse import urlsplit

SPOOL_SCHEMES = ("file", "s3", "gs", "az", "abfss", "memory")
LAKE_SCHEMES = ("file", "s3", "gs", "abfss")


def _checked_uri(uri: str, schemes: tuple[str, ...]) -> str:
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in schemes:
        raise ValueError("an address begins with one of " + ", ".join(f"{name}://" for name in schemes))
    if re.match(r"[^/@]*:[^/@]*@", rest):
        raise ValueError("an address must not hold credentials; give them under `options` or in the environment")
    try:
        urlsplit(uri)
    except ValueError:
        raise ValueError("the host of the address cannot be read") from None
    if uri != uri.strip():
        raise ValueError("an address must not begin or end with a space")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError("a local address is absolute: file:///var/lib/sluice")
    if not rest.strip("/"):
        raise ValueError("an address needs a bucket or a directory after the scheme")
    return uri.rstrip("/")


def spool_uri(uri: str) -> str:
    return _checked_uri(uri, SPOOL_SCHEMES)


def lake_uri(uri: str) -> str:
    return _checked_uri(uri, LAKE_SCHEMES)


def connection_string(dsn: str) -> str:
    """For libpq a password ends at the first `@`, and there is none if a `/` comes before that. It would take the rest
    for the name of the host, which errors may show. (PostgreSQL: Connection URIs.)
    """
    scheme, separator, rest = dsn.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        place = re.sub(r"\A[^@/]*@", "", rest)
        if "@" in place.partition("?")[0]:
            raise ValueError("in the user name and the password of a URI, @ is written as %40, and / as %2F")
    return dsn


def listen_address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("an address to listen on is HOST:PORT, such as 127.0.0.1:9187; port 0 takes any free one")
    return value


def web_address(value: str) -> str:
    parts = urlsplit(value)
    try:
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.username is not None or parts.query or parts.fragment or not value.isprintable():
        raise ValueError("an address is http:// or https://, a host and what follows, without user, query and fragment")
    return value.rstrip("/")


def catalog_address(value: str) -> str:
    """Empty, a web address, or the thrift://HOST:PORT of a metastore."""
    if not value.startswith("thrift://"):
        return optional_web_address(value)
    try:
        parts = urlsplit(value)
        whole = parts.hostname and parts.port and parts.username is None and not (parts.path or parts.query)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError("the address of a metastore is thrift://HOST:PORT")
    return value


def optional_web_address(value: str) -> str:
    return value and web_address(value)


def optional_listen_address(value: str) -> str:
    return "off" if value in ("", "off") else listen_address(value)
