"""What Spark's own client of S3 is told of the options of a store."""

import pytest

from sluice.errors import UsageError
from sluice_spark.storage import hadoop_settings

PREFIX = "spark.hadoop.fs.s3a.bucket.lake.encryption."


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"aws_server_side_encryption": "AES256"}, {"algorithm": "AES256"}),
        ({"server_side_encryption": "aws:kms"}, {"algorithm": "SSE-KMS"}),
        (
            {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms", "aws_sse_kms_key_id": "arn"},
            {"algorithm": "SSE-KMS", "key": "arn"},
        ),
        (
            {"aws_server_side_encryption": "aws:kms:dsse", "aws_sse_kms_key_id": "arn"},
            {"algorithm": "DSSE-KMS", "key": "arn"},
        ),
        (
            {"aws_server_side_encryption": "sse-c", "aws_sse_customer_key_base64": "a2V5"},
            {"algorithm": "SSE-C", "key": "a2V5"},
        ),
    ],
)
def test_spark_encrypts_what_it_stores_as_the_store_s_own_client_does(
    given: dict[str, str], told: dict[str, str]
) -> None:
    settings = hadoop_settings("s3://lake/prefix", given)
    assert {name.removeprefix(PREFIX): value for name, value in settings.items() if "encryption" in name} == told


def test_an_encryption_that_spark_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown to Spark"):
        hadoop_settings("s3://lake", {"aws_server_side_encryption": "rot13"})
