"""A user without jars, whose Spark knows a Maven repository of Delta's jars on this disk and no other: Spark's own
resolver does its work, and no byte crosses the network.
"""

import os
import shutil
from pathlib import Path

from sluice_spark import jars


def repository_on_disk(folder: Path) -> dict[str, str]:
    """Makes it below `folder`; the variables with which Spark finds it and no jar in the user's cache."""
    repository, conf, home = (folder / name for name in ("maven", "conf", "home"))
    for package in jars.DELTA.packages:
        group, artifact, version = package.split(":")
        place = repository / group.replace(".", "/") / artifact / version
        place.mkdir(parents=True)
        jar = jars.default_directory() / f"{group}_{artifact}-{version}.jar"
        shutil.copyfile(jar, place / f"{artifact}-{version}.jar")
        (place / f"{artifact}-{version}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
            f"<artifactId>{artifact}</artifactId><version>{version}</version></project>"
        )
    conf.mkdir()
    (conf / "ivysettings.xml").write_text(
        "<ivysettings><settings defaultResolver='disk'/><resolvers>"
        f"<ibiblio name='disk' m2compatible='true' root='{repository.as_uri()}/'/></resolvers></ivysettings>"
    )
    (conf / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {conf}/ivysettings.xml\n")
    home.mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return {**plain, "HOME": str(home), "SPARK_CONF_DIR": str(conf)}
