"""Typed settings: read once by the command line, handed to the rooms as plain values.

`load` gives a checked tree with the origin of every value; `present` shows it without secrets. Rooms never import this package.
"""

from service.settings.load import DEFAULT_FILE, Loaded, load
from service.settings.model import Settings
from service.settings.secrets import secret_strings

__all__ = ["DEFAULT_FILE", "Loaded", "Settings", "load", "secret_strings"]
