"""Which alert makes which others silent: one cause is one page.

Invariants: both sides concern the same pipeline; the alert that silences pages itself and names
the cause of what it silences; nothing silences the loss of a slot or a table that does not equal its
source, and nothing but the loss of the slot silences that the slot is in danger.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While `source` fires for a pipeline, `targets` notify nobody for it."""

    source: str
    targets: tuple[str, ...]
    why: str


_FRESHNESS = ("SluiceFreshnessBurnFast", "SluiceFreshnessBurnSlow", "SluiceLakeBehind")
_STREAM = ("SluiceLagCritical", "SluiceLagHigh", "SluiceReconnectLoop", "SluiceUnwatched")

INHIBITIONS = (
    Inhibition(
        "SluiceSlotLost",
        ("SluiceIngestDown", "SluiceSlotEndangered", "SluiceWalHeadroomLow", *_STREAM, *_FRESHNESS),
        "The pipeline has stopped for good. All else follows from it.",
    ),
    Inhibition(
        "SluiceIngestDown",
        (*_STREAM, *_FRESHNESS, "SluiceObjectStoreFailing", "SluiceSnapshotStalled"),
        "Nothing is received, and the figures are old or missing.",
    ),
    Inhibition(
        "SluiceLagCritical",
        ("SluiceLagHigh", "SluiceUnwatched", "SluiceSnapshotStalled", *_FRESHNESS),
        "The lake cannot be fresher than the spool. A store that is away cannot be read either.",
    ),
    Inhibition("SluiceUnwatched", _FRESHNESS, "The figures of the lake are as old as the last look."),
    Inhibition(
        "SluiceApplierDown",
        ("SluiceApplyFailing", *_FRESHNESS),
        "The lake stands still because its applier does.",
    ),
    Inhibition("SluiceFreshnessBurnFast", ("SluiceFreshnessBurnSlow", "SluiceLakeBehind"), "The same, slower."),
    Inhibition("SluiceSlotEndangered", ("SluiceWalHeadroomLow",), "The same, earlier."),
)
