"""The chart of a release: packaged with its images."""

from pathlib import Path

import pytest
import yaml
from helm_python import chart as native

from sluice.errors import UsageError
from tests.ops import helm
from tools.release import chart

DIGESTS = {name: f"sha256:{letter * 64}" for name, letter in (("ingest", "a"), ("applier", "b"))}
IMAGES = [f"registry.example.com/acme/sluice-{name}@{digest}" for name, digest in DIGESTS.items()]


def test_a_packaged_chart_runs_the_images_of_its_release(tmp_path: Path) -> None:
    archive = chart.package(helm.CHART, tmp_path, IMAGES)
    version = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["version"]
    assert archive.name == f"sluice-{version}.tgz"
    installed = native.Chart.load_archive(archive.read_bytes())
    values = helm.feature("default")
    installed.validate_schema(values)
    rendered = installed.render(values, name=helm.RELEASE, namespace=helm.NAMESPACE)
    texts = [text for path, text in rendered.items() if not path.endswith(".txt")]
    sets = [one for text in texts for one in yaml.safe_load_all(text) if one and one["kind"] == "StatefulSet"]
    containers = [container for one in sets for container in one["spec"]["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == set(IMAGES)
    named = {line.strip() for line in installed.metadata["annotations"]["artifacthub.io/images"].splitlines()}
    assert {f"image: {image}" for image in IMAGES} <= named


@pytest.mark.parametrize(
    "images",
    [IMAGES[:1], ["sluice-ingest:0.1.0", "sluice-applier:0.1.0"], [*IMAGES[:1], *IMAGES[:1]], [*IMAGES, "more"]],
    ids=["one", "tags", "twice", "more"],
)
def test_a_chart_is_packaged_only_with_both_images_by_digest(tmp_path: Path, images: list[str]) -> None:
    with pytest.raises(UsageError, match="two images"):
        chart.package(helm.CHART, tmp_path, images)
    assert not list(tmp_path.glob("*.tgz"))
