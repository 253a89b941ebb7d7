"""SLUICE_* variables over the file: `SLUICE_SOURCE__DSN`, and `SLUICE_SOURCE__DSN_FILE` for a
secret mounted as a file.

Invariant: a variable with our prefix that names no setting is refused, for a mistyped one that is
ignored is a setting that silently has its default.
"""

import re
from collections.abc import Mapping
from pathlib import Path as FilePath

from sluice.errors import UsageError
from sluice.settings.document import Document
from sluice.settings.tree import ENV_PREFIX, Key, keys, nearest

OTHER_VARIABLES = ("SLUICE_CONFIG", "SLUICE_FAULTS", "SLUICE_JARS", "SLUICE_APPLY_OPTIONS", "SLUICE_OPERATOR_DSN")
"""Ours, but no settings: the file's name, armed fault points, the jar cache, what `up` hands to the
applier, as whom an operator alters the publication.
"""
_OUTSIDE = ("SLUICE_TEST_", "SLUICE_POSTGRES_")
"""For the tests and the local servers beside the product."""
_SERVICE_LINK = re.compile(
    r"SLUICE_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)?)"
)
"""What Kubernetes puts into every pod beside a Service named `sluice`; never anything of ours."""
_FILE = "_FILE"


def overlay(document: Document, environ: Mapping[str, str]) -> None:
    """Puts every setting that `environ` gives into `document`. Raises UsageError; values are never
    repeated.
    """
    known = {key.env: key for key in keys() if key.from_environment}
    strangers = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES or name.startswith(_OUTSIDE):
            continue
        key, below = _key_of(name, known)
        if key is None and name.endswith(_FILE):
            plain = name.removesuffix(_FILE)
            key, below = _key_of(plain, known)
            if key is not None and plain in environ:
                raise UsageError(f"both {plain} and {name} are set", hint="keep one of them")
        if key is not None:
            document.put((*key.path, *below), _value(name, key, environ), origin=f"env {name}")
        elif not _SERVICE_LINK.fullmatch(name):
            strangers.append(_stranger(name, known))
    if strangers:
        raise UsageError(
            "; ".join(strangers),
            hint="`sluice config env` lists the variables; every variable that begins with SLUICE_ must be one of them",
        )


def secret_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The files that variables of `environ` name in place of a value."""
    return tuple(environ[name] for name in sorted(environ) if name.startswith(ENV_PREFIX) and name.endswith(_FILE))


def _key_of(name: str, known: Mapping[str, Key]) -> tuple[Key | None, tuple[str, ...]]:
    if name in known:
        return (None, ()) if known[name].map_of_strings else (known[name], ())
    above, separator, below = name.rpartition("__")
    key = known.get(above)
    if separator and below and key is not None and key.map_of_strings and not below.endswith(_FILE):
        return key, (below.lower(),)
    return None, ()


def _value(name: str, key: Key, environ: Mapping[str, str]) -> str | list[str]:
    text = environ[name]
    if name != key.env and name.endswith(_FILE):
        try:
            text = FilePath(text).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name} names a file that cannot be read ({type(error).__name__})") from None
    elif any("\udc80" <= character <= "\udcff" for character in text):
        raise UsageError(f"{name} holds bytes that are not valid UTF-8")
    if key.list_of_strings:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _stranger(name: str, known: Mapping[str, Key]) -> str:
    near = nearest(name, known)
    return f"the environment variable {name} names no setting" + (f" (nearest: {near})" if near else "")
