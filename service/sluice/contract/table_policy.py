"""The choices for a table that changes: what the configuration accepts is what ingest acts on. Which one is
the default is up to the configuration.
"""

from typing import Literal

OnChange = Literal["resync", "stop"]
OnWiden = Literal["resync", "follow"]
OnRename = Literal["keep", "move"]
Contract = Literal["evolve", "ignore_new", "stop"]
