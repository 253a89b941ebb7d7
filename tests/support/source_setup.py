"""A database made ready for the source's tests: options, publication and slot."""

from service.source.sessions import SourceOptions
from tests.support.sources import Database


def options_of(database: Database, *, user: str = "postgres") -> SourceOptions:
    """Options for the database's own slot and publication."""
    return SourceOptions(
        dsn=database.server.dsn(user=user, dbname=database.name), slot=database.slot, publication=database.publication, application_name="sluice_test"
    )
