"""`sluice`, and `python -m sluice`: the first code of the process."""

import sys

from sluice import signals, streams

_DRAINING = ("run", "up", "fleet")
"""Commands that a signal asks to finish what they hold."""
_WITH_VALUE = ("-c", "--config", "--log-format")
"""Options that may stand before the command with a word of their own."""


def main() -> None:
    """Runs the command line. A signal that comes while it is still being loaded is kept for what it
    starts.
    """
    streams.prepare()
    if _command(sys.argv[1:]) in _DRAINING:
        signals.arm()
    from sluice import cli

    cli.main()


def _command(arguments: list[str]) -> str:
    words = iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


if __name__ == "__main__":
    main()
