"""What every catalog can be asked, and how it fails."""

from abc import ABC, abstractmethod

from sluice.errors import ApplyError
from sluice_spark.catalog.entries import Entry, Found, is_as_wanted


class CatalogAway(ApplyError):
    """The catalog does not answer: nothing of it can be asked now."""


class CatalogRefused(ApplyError):
    """The catalog refuses what it was asked about one name."""


class Catalog(ABC):
    """Used by one thread. Every method raises CatalogAway and CatalogRefused, unless it says that it raises nothing.
    With `create_schemas` schemas that are missing are made.
    """

    def __init__(self, *, create_schemas: bool) -> None:
        self._create_schemas = create_schemas

    @abstractmethod
    def find(self, name: str) -> Found | None:
        """What stands under `name`, None when nothing does."""

    @abstractmethod
    def replace(self, entry: Entry) -> None:
        """Makes an entry that is ours into `entry`."""

    @abstractmethod
    def close(self) -> None:
        """Ends connections; the next question makes new ones. Raises nothing."""

    def is_as_wanted(self, entry: Entry, found: Found) -> bool:
        """Whether an entry that is ours needs nothing. Raises nothing."""
        return is_as_wanted(entry, found)

    def require_schema(self, name: str) -> None:
        """Raises CatalogRefused when the schema of `name` is missing, and may not be created."""
        schema = _schema_of(name)
        if not self._create_schemas and not self._has_schema(schema):
            raise CatalogRefused(
                f"the catalog has no schema {schema}", hint="create it there, or set catalog.create_schemas: true"
            )

    def create(self, entry: Entry) -> None:
        """Registers a name that is free."""
        schema = _schema_of(entry.name)
        if not self._has_schema(schema):
            self.require_schema(entry.name)
            self._create_schema(schema)
        self._create_entry(entry)

    @abstractmethod
    def _has_schema(self, schema: str) -> bool: ...

    @abstractmethod
    def _create_schema(self, schema: str) -> None: ...

    @abstractmethod
    def _create_entry(self, entry: Entry) -> None:
        """In a schema that is there."""


def _schema_of(name: str) -> str:
    """With the catalog in front of it where names have one."""
    return name.rpartition(".")[0]
