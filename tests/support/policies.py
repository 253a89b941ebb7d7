"""An S3 server that enforces the example policies of deploy/object-store, as far as it can.

It looks at the action and the object of each request, not at conditions (they are taken out here),
and for a delete at the bucket only, which it has to be allowed for. What it cannot enforce is
compared with what was asked of it.
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3

from tools.local.s3 import ACCESS_KEY, REGION, S3Server, running_s3

POLICIES = Path(__file__).parents[2] / "deploy" / "object-store"
BUCKET = "example"
_NAMES = {
    "SPOOL-BUCKET": BUCKET,
    "LAKE-BUCKET": BUCKET,
    "SPOOL-PREFIX": "spool",
    "LAKE-PREFIX": "lake",
    "PIPELINE": "test",
}
_EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def policy(name: str) -> dict[str, Any]:
    text = (POLICIES / f"s3-{name}-policy.json").read_text(encoding="utf-8")
    for place, value in _NAMES.items():
        text = text.replace(place, value)
    document: dict[str, Any] = json.loads(text)
    return document


def allows(document: dict[str, Any], action: str, key: str) -> bool:
    """Whether the policy lets `action` be done to an object. No statement here denies anything."""
    return any(
        action in _listed(statement["Action"])
        and any(fnmatchcase(f"arn:aws:s3:::{BUCKET}/{key}", pattern) for pattern in _listed(statement["Resource"]))
        for statement in document["Statement"]
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class GuardedS3:
    """`options` by who asks: `ingest` and `applier` with their policies, `anybody` may do everything."""

    server: S3Server
    options: dict[str, dict[str, str]]
    spool_uri: str = f"s3://{BUCKET}/spool"
    lake_uri: str = f"s3://{BUCKET}/lake"

    def another_key(self, user: str) -> dict[str, str]:
        """Options with a new key of `user`, beside the one that they have."""
        return {**self.server.options(), **_new_key(self._iam(), user)}

    def withdraw(self, options: dict[str, str], user: str) -> None:
        """The key in `options` is refused from now on."""
        self._iam().delete_access_key(UserName=user, AccessKeyId=options["access_key_id"])

    def objects(self, prefix: str) -> dict[str, dict[str, Any]]:
        """What the server says of each object below `prefix`, by its key."""
        client = boto3.client(
            "s3",
            endpoint_url=self.server.endpoint,
            region_name=REGION,
            aws_access_key_id=self.options["anybody"]["access_key_id"],
            aws_secret_access_key=self.options["anybody"]["secret_access_key"],
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        found = [one["Key"] for page in pages for one in page.get("Contents", [])]
        return {key: client.head_object(Bucket=BUCKET, Key=key) for key in found}

    def _iam(self) -> Any:
        return _iam(self.server, self.options["anybody"])


@contextmanager
def guarded_s3() -> Iterator[GuardedS3]:
    with running_s3(buckets=(BUCKET,)) as server:
        users = {name: _user(server, name, document) for name, document in _documents().items()}
        # From here on every request needs a signature and a right.
        request = urllib.request.Request(
            f"{server.endpoint}/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request, timeout=10).close()
        yield GuardedS3(server, users)


def _documents() -> dict[str, dict[str, Any]]:
    found = {name: policy(name) for name in ("ingest", "applier")}
    for document in found.values():
        for statement in document["Statement"]:
            statement.pop("Condition", None)
        document["Statement"].append(
            {"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{BUCKET}"}
        )
    return {**found, "anybody": _EVERYTHING}


def _user(server: S3Server, name: str, document: dict[str, Any]) -> dict[str, str]:
    iam = _iam(server, {"access_key_id": ACCESS_KEY, "secret_access_key": ACCESS_KEY})
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="example", PolicyDocument=json.dumps(document))
    return {**server.options(), **_new_key(iam, name)}


def _iam(server: S3Server, options: dict[str, str]) -> Any:
    return boto3.client(
        "iam",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
    )


def _new_key(iam: Any, user: str) -> dict[str, str]:
    key = iam.create_access_key(UserName=user)["AccessKey"]
    return {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}
