"""URIs and options: what is accepted opens the right place, what is not is refused without repeating a secret."""

from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice.store.opening import open_store
from tests.support.killed import run

ACCOUNT, UNSIGNED = "account.dfs.core.windows.net", {"azure_skip_signature": "true"}
PLAIN = {"aws_allow_http": "true", "AWS_ENDPOINT": "http://127.0.0.1:1"}
S3 = {"region": "us-east-1", "access_key_id": "k", "secret_access_key": "hidden"}


@pytest.mark.parametrize(
    ("uri", "options", "described"),
    [
        ("file:///var/lib/sluice/spool", {}, "file:///var/lib/sluice/spool/shop/"),
        ("file:///var/lib/sl%20uice/", {}, "file:///var/lib/sl uice/shop/"),
        ("file://localhost/x", {}, "file:///x/shop/"),
        ("memory://name", {}, "memory://name/shop/"),
        ("s3://bucket", S3, "s3://bucket/shop/"),
        ("s3://bucket/a/b/", {**S3, **PLAIN}, "s3://bucket/a/b/shop/"),
        ("gs://bucket/a", {"google_skip_signature": "true"}, "gs://bucket/a/shop/"),
        ("az://container/a", {**UNSIGNED, "azure_storage_account_name": "account"}, "az://container/a/shop/"),
        (f"abfss://container@{ACCOUNT}/a", UNSIGNED, f"abfss://container@{ACCOUNT}/a/shop/"),
    ],
)
def test_each_kind_of_uri_opens_below_the_pipeline(uri: str, options: dict[str, str], described: str) -> None:
    store = open_store(uri, prefix="shop/", options=options)
    assert store.describe() == described
    assert "hidden" not in store.describe() + repr(store)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("/var/lib/spool", {}),
        ("ftp://host/x", {}),
        ("file://host/x", {}),
        ("file:x", {}),
        ("file:///a/../b", {}),
        ("file:///a?b=hidden", {}),
        ("s3://", {}),
        ("s3://key:hidden@bucket/x", {}),
        ("s3://hidden@bucket/x", {}),
        ("s3://bucket/x?token=hidden", {}),
        ("s3://bucket/../x", {}),
        ("s3://bucket", {"no_such_option": "hidden"}),
        ("s3://bucket", {"timeout": "hidden"}),
        ("s3://bucket", {"aws_proxy_url": "hidden"}),
        ("s3://bucket", {"allow_http": "hidden"}),
        ("s3://bucket", {"virtual_hosted_style_request": "hidden"}),
        ("az://container/x", {}),
        ("http://[", {}),
    ],
)
def test_what_cannot_be_opened_is_refused_without_its_secrets(uri: str, options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(uri, options=options)
    assert "hidden" not in str(raised.value) + raised.value.hint


@pytest.mark.parametrize("prefix", ["shop", "/", "../", "a/../", "/shop/"])
def test_a_prefix_that_is_no_folder_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError):
        open_store("memory://x", prefix=prefix, options={})


def test_memory_stores_of_one_name_share_their_objects_and_prefixes_keep_apart() -> None:
    one, same = open_store("memory://shared", prefix="a/", options={}), open_store("memory://shared/a", options={})
    other = open_store("memory://shared", prefix="ab/", options={})
    one.put("k", b"1")
    assert same.get("k") == b"1"
    assert list(other.list("")) == []


@pytest.mark.parametrize("point", ["store.create.before", "store.create.after", "store.put.before", "store.put.after"])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_fault_before_a_write_leaves_nothing_and_after_it_everything(tmp_path: Path, point: str, kind: str) -> None:
    script = f"""
from sluice.errors import StoreUnavailable
from sluice.store.opening import open_store
store = open_store({"memory://x" if kind == "memory" else f"file://{tmp_path}"!r}, options={{}})
try:
    store.{point.split(".")[1]}("k", b"1")
except StoreUnavailable:
    print("unavailable", store.size("k"))
"""
    result = run(script, f"{point}=raise")
    assert result.stdout.split() == ["unavailable", "1" if "after" in point else "None"], result.stderr
