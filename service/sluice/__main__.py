"""`sluice`, and `python -m sluice`: the first code of the process."""

import sys

from sluice import signals

_DRAINING = ("run", "up")
"""Commands that a signal asks to finish what they hold."""


def main() -> None:
    """Runs the command line. A signal that comes while it is still being loaded is kept for what it
    starts.
    """
    if sys.argv[1:2] and sys.argv[1] in _DRAINING:
        signals.arm()
    from sluice import cli

    cli.main()


if __name__ == "__main__":
    main()
