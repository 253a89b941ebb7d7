"""An S3-compatible server whose objects are files and stay when it stops: S3Proxy, with its
jars fetched once and checked by their hashes.

For the local stack; tests that want an S3 server for minutes use `s3`. It decides create-only while
it writes, so that of racing writers one wins. Must not be relied on after a power cut: it leaves
the sync of its files to the operating system.

`python -m tools.local.s3proxy` fetches the jars now.
"""

import os
import sys
from pathlib import Path

from sluice.errors import UsageError
from sluice_spark import jars
from tools.local.binaries import LocalServerError
from tools.local.s3 import ACCESS_KEY

_HERE = Path(__file__).parent
S3PROXY = jars.JarSet(
    "s3proxy",
    ("org.gaul:s3proxy:4.0.0", "jakarta.servlet:jakarta.servlet-api:6.0.0"),
    # Its other back ends: Amazon, Azure, Google, OpenStack, SFTP; and its metrics.
    (
        "software.amazon.awssdk:*",
        "com.azure:*",
        "com.google.cloud:*",
        "com.google.cloud.opentelemetry:*",
        "com.github.openstack4j.core:*",
        "com.github.openstack4j.core.connectors:*",
        "org.apache.sshd:*",
        "io.opentelemetry:*",
        "io.opentelemetry.contrib:*",
        "io.opentelemetry.semconv:*",
        "io.prometheus:*",
        "org.eclipse.jetty:*",
        "org.eclipse.jetty.ee10:*",
        "net.java.dev.jna:*",
        "com.google.jimfs:*",
        "com.google.auth:*",
        "com.github.fge:*",
        "com.google.auto.service:*",
        "com.google.errorprone:*",
        "com.google.j2objc:*",
        "org.checkerframework:*",
        "org.jspecify:*",
        "com.google.code.findbugs:*",
        "commons-codec:*",
        "com.fasterxml.jackson.dataformat:*",
    ),
    command="python -m tools.local.s3proxy",
    recorded_in=_HERE,
)
_HEAP = "256m"


def command(configuration: Path, *, port: int, objects: Path) -> list[str]:
    """What runs the server in the foreground on 127.0.0.1:`port`, its objects below the folder
    `objects`; writes `configuration`.

    Raises LocalServerError when its jars cannot be had.
    """
    try:
        found = jars.fetch_set(S3PROXY, jars.default_directory())
    except UsageError as error:
        raise LocalServerError(f"{error}: {error.hint}") from error
    objects.mkdir(parents=True, exist_ok=True)
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": ACCESS_KEY,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(objects),
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else Path("java")
    options = [f"-Xmx{_HEAP}", "-XX:+UseSerialGC", f"-Dlogback.configurationFile={_HERE / 's3proxy-logback.xml'}"]
    return [
        str(java),
        *options,
        "-cp",
        ":".join(map(str, found)),
        "org.gaul.s3proxy.Main",
        "--properties",
        str(configuration),
    ]


if __name__ == "__main__":
    try:
        jars.fetch_set(S3PROXY, jars.default_directory())
    except UsageError as failure:
        sys.exit(f"{failure}: {failure.hint}")
