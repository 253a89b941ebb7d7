"""The kind of a lake table as a setting: one of those that are registered."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from sluice.contract.lake_kinds import KINDS


def _registered(mode: str) -> str:
    if mode not in KINDS:
        raise ValueError(f"mode {mode} is not supported by this version; choose {' or '.join(KINDS)}")
    return mode


LakeMode = Annotated[str, AfterValidator(_registered), WithJsonSchema({"enum": list(KINDS), "type": "string"})]
