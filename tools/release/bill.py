"""The bill of materials of a release, as CycloneDX 1.6."""

from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Part
from cyclonedx.model.component import ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from tools.release import components


def of(root: Path, version: str) -> str:
    """JSON: `sluice-cdc[all]` of `version`, and everything that it installs or fetches. The same for the same locks."""
    licenses = LicenseFactory()
    bill = Bom()
    bill.metadata.component = subject = Part(
        type=ComponentType.APPLICATION,
        name="sluice-cdc",
        version=version,
        bom_ref="sluice-cdc",
        purl=PackageURL.from_string(f"pkg:pypi/sluice-cdc@{version}"),
        licenses=[licenses.make_from_string("Apache-2.0")],
    )
    parts = []
    for one in components.all_of(root):
        part = Part(
            type=ComponentType.LIBRARY,
            group=one.group or None,
            name=one.name,
            version=one.version,
            bom_ref=one.purl,
            purl=PackageURL.from_string(one.purl),
            licenses=[licenses.make_from_string(one.license)] if one.license else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)] if one.sha256 else [],
            description=f"installed where {one.marker}" if one.marker else None,
        )
        if part not in parts:
            parts.append(part)
            bill.components.add(part)
    bill.register_dependency(subject, parts)
    bill.serial_number = None  # type: ignore[assignment]  # it and the time are all that differs from run to run
    bill.metadata.timestamp = None  # type: ignore[assignment]
    return make_outputter(bill, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"
