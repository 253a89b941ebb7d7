"""What one manifest entry will publish, while its files are on their way."""

from concurrent.futures import Future
from dataclasses import dataclass, replace

from sluice.contract.entries import BodyCommit, Changes, Commits, Prepared, PreparedEnd, PreparedPart, Segment, Table
from sluice.ingest.encode.bodies import Part


@dataclass(frozen=True, slots=True)
class Unit:
    """Everything that one entry publishes: what ended after `from_lsn`, at or before `through_lsn`,
    and nothing of that is missing.

    Files become durable by themselves; the entry may be written when all have.
    """

    segments: list["Future[Segment]"]
    bodies: list[tuple["Future[Segment]", int, BodyCommit]]
    commits: Commits
    prepared: list[tuple[Prepared, list[Part]]]
    ended: list[PreparedEnd]
    tables: tuple[Table, ...]
    from_lsn: int
    through_lsn: int

    def changes(self) -> Changes | None:
        """What the manifest records, None if that is nothing but an advance. Waits for each file to
        be durable and raises what its upload raised.
        """
        segments = [future.result() for future in self.segments]
        for future, schema_version, body in self.bodies:
            segments.append(
                replace(
                    future.result(),
                    schema_version=schema_version,
                    first_lsn=body.end_lsn,
                    last_lsn=body.end_lsn,
                    body=body,
                )
            )
        prepared = [
            replace(fact, parts=tuple(PreparedPart(part.shape, part.file.result()) for part in parts))
            for fact, parts in self.prepared
        ]
        if not (segments or self.commits or prepared or self.ended or self.tables):
            return None
        return Changes(tuple(segments), self.commits, tuple(prepared), tuple(self.ended), self.tables)
