"""Which strings must never be seen: what the log redaction is armed with.

Invariant: every secret of a settings tree is in the list in the forms in which a library could
repeat it. (libpq: Connection Strings.)
"""

import re
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import SecretStr

from sluice.settings.model import Settings

_PASSWORD_WORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']+)")
_HARMLESS_OPTION = re.compile(r"region|endpoint|url|bucket|allow_http|timeout|format|virtual_hosted", re.IGNORECASE)
"""Values of these are masked when shown, but not cut out of log lines: `true` or `us-east-1` occur
everywhere.
"""


def secret_strings(settings: Settings) -> tuple[str, ...]:
    """Every secret string of `settings`, longest first."""
    found = set(dsn_secrets(settings.source.dsn.get_secret_value()))
    found.add(settings.catalog.token.get_secret_value())
    for options in (settings.spool.options, settings.lake.options, settings.apply.conf):
        found.update(_option_secrets(options))
    for headers in (settings.telemetry.traces_headers, settings.telemetry.lineage_headers):
        found.update(value.get_secret_value() for value in headers.values())
    return tuple(sorted(filter(None, found), key=len, reverse=True))


def dsn_secrets(dsn: str) -> tuple[str, ...]:
    """The connection string itself if it holds a password, and each password in it as written and
    as meant.
    """
    passwords = _uri_passwords(dsn) if "://" in dsn else _keyword_passwords(dsn)
    return (dsn, *passwords) if passwords else ()


def _uri_passwords(dsn: str) -> list[str]:
    authority, _, query = dsn.partition("://")[2].partition("?")
    found = []
    user_info, at, _ = authority.rpartition("@")
    _, colon, password = user_info.partition(":")
    if at and colon and password:
        found += [password, unquote(password)]
    pairs = parse_qsl(urlsplit(f"x://h/?{query}").query, keep_blank_values=False)
    for word, value in pairs:
        if word in _PASSWORD_WORDS:
            found += [value, quote(value, safe="")]
    return found


def _keyword_passwords(dsn: str) -> list[str]:
    found = []
    for word, value in _KEYWORD.findall(dsn):
        if word in _PASSWORD_WORDS:
            bare = value[1:-1] if value.startswith("'") else value
            found += [bare, re.sub(r"\\(.)", r"\1", bare)]
    return found


def _option_secrets(options: dict[str, SecretStr]) -> list[str]:
    return [value.get_secret_value() for name, value in options.items() if not _HARMLESS_OPTION.search(name)]
