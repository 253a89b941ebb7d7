"""A reason with words of a test's own."""

from sluice.contract.reasons import Reason, ReasonCode


def because(what: str) -> Reason | None:
    """Whose sentence is `what` in every state; None for an empty one."""
    return Reason(ReasonCode.LAKE_DIFFERS, {"what": what}) if what else None
