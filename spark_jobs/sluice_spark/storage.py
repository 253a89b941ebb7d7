"""Locations and credentials of the object store, translated to Spark's own form.

Secrets appear only in the Hadoop settings that this module returns. The session passes them on and
does not log them.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sluice.errors import UsageError

_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "abfss": "abfss", "abfs": "abfs"}
_ENCRYPTION = {
    "aes256": ("AES256", ""),
    "aws:kms": ("SSE-KMS", "sse_kms_key_id"),
    "aws:kms:dsse": ("DSSE-KMS", "sse_kms_key_id"),
    "sse-c": ("SSE-C", "sse_customer_key_base64"),
}
"""Encryption by the server: what S3A calls it, and which option has its key."""

_S3A, _SDK = "org.apache.hadoop.fs.s3a", "software.amazon.awssdk.auth.credentials"
_IDENTITIES = (
    f"{_S3A}.TemporaryAWSCredentialsProvider",
    f"{_S3A}.SimpleAWSCredentialsProvider",
    f"{_SDK}.EnvironmentVariableCredentialsProvider",
    f"{_SDK}.WebIdentityTokenFileCredentialsProvider",
    f"{_S3A}.auth.IAMInstanceCredentialsProvider",
)
"""Where S3A looks for an identity: Hadoop's own list, and the token of a pod, which it leaves out and the store's own
client takes before the identity of the machine.
"""
_BUFFERS = "${env.SPARK_LOCAL_DIRS:-${env.LOCAL_DIRS:-${hadoop.tmp.dir}}}/s3a"
"""Where parts of files wait for their upload, up to 320 MiB for each task: with whatever else Spark has on disk, and
not below /tmp. Each JVM resolves it for itself.
"""


def spark_uri(uri: str) -> str:
    """`uri` as Spark spells it, without a slash at the end. Raises UsageError for schemes Spark
    cannot read.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return url2pathname(parts.path).rstrip("/")
    if parts.scheme not in _SCHEMES:
        raise UsageError(f"Spark cannot read {parts.scheme}:// locations", hint="use file://, s3://, gs:// or abfss://")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}".rstrip("/")


def join(uri: str, key: str) -> str:
    """The Spark path of `key` below `uri`."""
    return f"{spark_uri(uri)}/{key}"


def needs_s3(*uris: str) -> bool:
    """Whether any of the locations is reached through the S3 jars."""
    return any(urlsplit(uri).scheme in ("s3", "s3a") for uri in uris)


def hadoop_settings(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """`spark.hadoop.*` settings for one location, from the store's own option names. Credentials
    come from the environment where none are given.

    Settings are per bucket, so that spool and lake may live in different accounts.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("s3", "s3a"):
        return {}
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    prefix = f"spark.hadoop.fs.s3a.bucket.{parts.netloc}."
    settings = {
        f"{prefix}connection.establish.timeout": "5s",
        # For all buckets, so that the operator's own comes over it.
        "spark.hadoop.fs.s3a.aws.credentials.provider": ",".join(_IDENTITIES),
        "spark.hadoop.fs.s3a.buffer.dir": _BUFFERS,
    }
    if "endpoint" in given:
        if not given["endpoint"].startswith("https") and given.get("allow_http", "false").lower() != "true":
            raise UsageError(
                f"the endpoint of {uri} is not https",
                hint="an https endpoint, or allow_http: true where the network itself is trusted",
            )
        settings[f"{prefix}endpoint"] = given["endpoint"]
        settings[f"{prefix}connection.ssl.enabled"] = str(given["endpoint"].startswith("https")).lower()
    if given.get("virtual_hosted_style_request", "false").lower() != "true":
        settings[f"{prefix}path.style.access"] = "true"
    if "server_side_encryption" in given:
        algorithm, key = _ENCRYPTION.get(given["server_side_encryption"].lower(), ("", ""))
        if not algorithm:
            raise UsageError(
                f"the encryption that is asked for {uri} is unknown to Spark", hint=f"one of {', '.join(_ENCRYPTION)}"
            )
        settings[f"{prefix}encryption.algorithm"] = algorithm
        if given.get(key):
            settings[f"{prefix}encryption.key"] = given[key]
    region = given.get("region") or given.get("default_region")
    if region:
        settings[f"{prefix}endpoint.region"] = region
    if "access_key_id" in given:
        settings[f"{prefix}access.key"] = given["access_key_id"]
        settings[f"{prefix}secret.key"] = given.get("secret_access_key", "")
        provider = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        if given.get("session_token"):
            settings[f"{prefix}session.token"] = given["session_token"]
            provider = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        settings[f"{prefix}aws.credentials.provider"] = provider
    return settings
