"""Which files a configuration is read from, as Kubernetes mounts them: a ConfigMap's file is a link to a folder that
each update replaces.
"""

import os
from pathlib import Path

import pytest

from sluice.cli import config_reload
from sluice.cli.fleet import configurations
from sluice.cli.invocation import Invocation
from sluice.reloading import FileWatch


def mount(folder: Path, number: int, **files: str) -> None:
    """As the kubelet writes a ConfigMap, and replaces it."""
    data, link = folder / f"..{number}", folder / "..data"
    before = link.resolve() if link.exists() else None
    data.mkdir(parents=True)
    for name, text in files.items():
        (data / f"{name}.yaml").write_text(text)
    (folder / "..new").symlink_to(data.name)
    (folder / "..new").rename(link)
    for name in files:
        if not (folder / f"{name}.yaml").is_symlink():
            (folder / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")
    if before is not None:
        for path in before.iterdir():
            path.unlink()
        before.rmdir()


def test_each_update_of_a_mounted_configuration_is_noticed_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(tmp_path, 1, sluice="pipeline: a")
    monkeypatch.chdir(tmp_path)
    invocation = Invocation("sluice.yaml", 0, False, None)
    files = config_reload.files(invocation)
    watch = FileWatch(*files, seen=config_reload.seen(invocation))
    os.chdir("/")
    for number in (2, 3, 4):
        mount(tmp_path, number, sluice=f"pipeline: a # {number}")
        assert [watch.changed(), watch.changed(), watch.changed()] == [False, True, False]
        assert f"# {number}" in Path(files[0]).read_text()


def test_a_mounted_folder_has_each_pipeline_once(tmp_path: Path) -> None:
    mount(tmp_path, 1, sluice="pipeline: a", west="pipeline: b")
    (tmp_path / ".west.yaml").write_text("pipeline: b")  # of an editor
    assert configurations(str(tmp_path)) == [str(tmp_path / "sluice.yaml"), str(tmp_path / "west.yaml")]
