"""The chart as a user gets it: packaged with the images of a release, pushed to an OCI registry, and pulled from it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helm_python import chart as native
from helm_python.registry import RegistryClient

from sluice.errors import UsageError
from tests.ops import helm
from tests.support import oci_registry
from tools.release import chart

DIGESTS = {name: f"sha256:{letter * 64}" for name, letter in (("ingest", "a"), ("applier", "b"))}
IMAGES = [f"registry.example.com/acme/sluice-{name}@{digest}" for name, digest in DIGESTS.items()]


@pytest.fixture
def registry() -> Iterator[oci_registry.Registry]:
    with oci_registry.running() as running:
        yield running


def test_a_chart_from_an_oci_registry_runs_the_images_of_its_release(
    registry: oci_registry.Registry, tmp_path: Path
) -> None:
    archive = chart.package(helm.CHART, tmp_path / "packaged", IMAGES)
    charts = f"oci://{registry.address}/acme/charts"
    with RegistryClient(plain_http=True, credentials_file=tmp_path / "credentials") as client:
        client.push(archive, charts, plain_http=True)
        version = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["version"]
        assert registry.tags.keys() == {("acme/charts/sluice", version)}
        client.pull(f"{charts}/sluice", version=version, destination=tmp_path, plain_http=True)
    pulled = tmp_path / archive.name
    assert pulled.read_bytes() == archive.read_bytes()
    installed = native.Chart.load_archive(pulled.read_bytes())
    values = helm.feature("default")
    installed.validate_schema(values)
    rendered = installed.render(values, name=helm.RELEASE, namespace=helm.NAMESPACE)
    objects = [
        one for path, text in rendered.items() if not path.endswith(".txt") for one in yaml.safe_load_all(text) if one
    ]
    run = {
        container["image"]
        for one in objects
        if isinstance(one, dict) and one.get("kind") == "StatefulSet"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert run == set(IMAGES)
    assert {f"image: {image}" for image in IMAGES} <= {
        line.strip() for line in installed.metadata["annotations"]["artifacthub.io/images"].splitlines()
    }


@pytest.mark.parametrize(
    "images",
    [IMAGES[:1], ["sluice-ingest:0.1.0", "sluice-applier:0.1.0"], [*IMAGES[:1], *IMAGES[:1]], [*IMAGES, "more"]],
    ids=["one", "tags", "twice", "more"],
)
def test_a_chart_is_packaged_only_with_both_images_by_digest(tmp_path: Path, images: list[str]) -> None:
    with pytest.raises(UsageError, match="two images"):
        chart.package(helm.CHART, tmp_path, images)
    assert not list(tmp_path.glob("*.tgz"))
