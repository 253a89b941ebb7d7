"""What every catalog can be asked, and how it fails."""

from typing import Protocol

from sluice.errors import ApplyError
from sluice_spark.catalog.entries import Entry, Found


class CatalogAway(ApplyError):
    """The catalog does not answer: nothing of it can be asked now."""


class CatalogRefused(ApplyError):
    """The catalog refuses what it was asked about one name."""


class Catalog(Protocol):
    """Used by one thread. Every method raises CatalogAway and CatalogRefused."""

    def find(self, name: str) -> Found | None:
        """What stands under `name`, None when nothing does."""
        ...

    def is_as_wanted(self, entry: Entry, found: Found) -> bool:
        """Whether an entry that is ours needs nothing. Raises nothing."""
        ...

    def create(self, entry: Entry) -> None:
        """Registers a name that is free."""
        ...

    def replace(self, entry: Entry) -> None:
        """Makes an entry that is ours into `entry`."""
        ...

    def require_schema(self, name: str) -> None:
        """Raises CatalogRefused when the schema of `name` is missing, and may not be created."""
        ...

    def close(self) -> None:
        """Ends connections; the next question makes new ones. Raises nothing."""
        ...


def no_schema(schema: str) -> CatalogRefused:
    """There is none of this name, and none may be made."""
    return CatalogRefused(
        f"the catalog has no schema {schema}", hint="create it there, or set catalog.create_schemas: true"
    )
