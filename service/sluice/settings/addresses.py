"""Addresses of the network as people write them: where to listen, and where pages are.

Invariant: an address that is accepted holds no secret. Must not know any setting by name.
"""

from urllib.parse import urlsplit


def listen_address(value: str) -> str:
    """HOST:PORT to listen on. Raises ValueError with what is allowed."""
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("an address to listen on is HOST:PORT, such as 127.0.0.1:9187; port 0 takes any free one")
    return value


def web_address(value: str) -> str:
    """The address of a page, without what may be secret. Raises ValueError with what is allowed."""
    parts = urlsplit(value)
    try:
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.username is not None or parts.query or parts.fragment or not value.isprintable():
        raise ValueError("an address is http:// or https://, a host and what follows, without user, query and fragment")
    return value.rstrip("/")


def optional_web_address(value: str) -> str:
    """The same, or nothing."""
    return value and web_address(value)


def optional_listen_address(value: str) -> str:
    """As `listen_address`, or `off`."""
    return "off" if value in ("", "off") else listen_address(value)
