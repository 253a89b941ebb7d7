"""Boundaries that a lake offers, as an applier publishes them."""

from pathlib import Path

from sluice.contract import boundary as stated
from sluice.contract.applied import time_text
from sluice.contract.boundary import BoundaryTable, LakeBoundary

BEGAN = 1_800_000_000.0


def publish(
    folder: Path,
    number: int,
    lsn: int,
    *,
    at: float = 0.0,
    manifest: str = "m",
    pipeline: str = "shop",
    left_out: dict[str, str] | None = None,
    tables: tuple[str, ...] = ("public.t",),
    version: int = 1,
    first: int = 0,
) -> None:
    """Boundary `number` of the lake in `folder`, in which each of `tables` has this `version`. Its log began with
    number `first`.
    """
    made = LakeBoundary(
        number,
        pipeline,
        manifest,
        f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}",
        number,
        time_text(BEGAN + at),
        time_text(BEGAN + at),
        time_text(BEGAN + at + 1),
        3600.0,
        tuple(BoundaryTable(*_names(name), name, version, "marker", number) for name in tables),
        left_out or {},
        reached=time_text(BEGAN + at),
        first=first,
    )
    path = folder / stated.key(pipeline, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made.encode())


def _names(name: str) -> tuple[str, str]:
    schema, _, table = name.partition(".")
    return schema, table
