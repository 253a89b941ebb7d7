"""Typed settings: read once by the command line, handed to the packages as plain values.

`load` gives a checked tree with the origin of every value; `present` shows it without secrets.
No other package imports this one.
"""

from sluice.settings.load import DEFAULT_FILE, Loaded, load
from sluice.settings.model import Settings
from sluice.settings.secrets import secret_strings

__all__ = ["DEFAULT_FILE", "Loaded", "Settings", "load", "secret_strings"]
