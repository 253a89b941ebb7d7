"""The chart of a release: it names the images of the same release by their digests."""

import re
import shutil
import tempfile
from pathlib import Path

from helm_python import chart

from sluice.errors import UsageError

_IMAGE = re.compile(
    r"^(?P<registry>[^/@]+(?:/[^/@]+)*)/sluice-(?P<name>ingest|applier)@(?P<digest>sha256:[0-9a-f]{64})$"
)


def package(source: Path, to: Path, images: list[str]) -> Path:
    """Packages the chart in the folder `source` into the folder `to`; the archive. `images` are the names of both with
    registry and digest, or nothing for the names in the chart. Raises UsageError.
    """
    found = [match for match in map(_IMAGE.match, images) if match]
    if len(found) != len(images) or (images and {match["name"] for match in found} != {"ingest", "applier"}):
        raise UsageError(
            f"{' '.join(images)!r} are not the two images of a release",
            hint="name both, as REGISTRY/sluice-ingest@sha256:... and REGISTRY/sluice-applier@sha256:...",
        )
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(source, Path(scratch) / source.name))
        for match in found:
            _name(copy, match)
        return Path(chart.package(copy, destination=to))


def _name(copy: Path, image: re.Match[str]) -> None:
    values, card = copy / "values.yaml", copy / "Chart.yaml"
    short = f"sluice-{image['name']}"
    block = re.compile(rf'registry: ""(\n(?:.*\n)??.*repository: {short}\n(?:.*\n)*?\s*digest: )""')
    text, count = block.subn(rf'registry: "{image["registry"]}"\g<1>"{image["digest"]}"', values.read_text(), count=1)
    named, times = re.subn(rf"image: {short}:\S+", f"image: {image[0]}", card.read_text())
    assert (count, times) == (1, 1), f"the chart does not name {short} where it did"
    values.write_text(text)
    card.write_text(named)
