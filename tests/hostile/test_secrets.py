"""Secrets in what configuration commands say."""

from pathlib import Path

import pytest

from tests.support.looks import Pipe
from tests.support.sources import Database

SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "text",
    [
        f"version: 1\npipeline: shop\nsource: {{dsn: {{password: {SECRET}}}}}\nspool: {{uri: 'file:///tmp/x'}}\nlake: {{uri: 'file:///tmp/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://u:{SECRET}@h/d', dns: 'postgresql://u:{SECRET}@h/d'}}\nspool: {{uri: 'file:///tmp/x'}}\nlake: {{uri: 'file:///tmp/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://u:{SECRET}@h/d}}\nspool: [\n",
        f"version: 1\npipeline: shop\nsource: 'postgresql://u:{SECRET}@h/d'\nspool: {{uri: 'file:///tmp/x'}}\nlake: {{uri: 'file:///tmp/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://u:{SECRET}@h/d'}}\nspool: {{uri: 'az://c/p?sig={SECRET}'}}\nlake: {{uri: 's3://k:{SECRET}@b/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'host=h password={SECRET} nonsense=1'}}\nspool: {{uri: 's3://k:{SECRET}@b/x'}}\nlake: {{uri: 'file:///tmp/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://u:{SECRET}@h/d'}}\nspool: {{uri: 's3://b/x', options: ['{SECRET}']}}\nlake: {{uri: 'file:///tmp/y'}}\n",
        f"version: 1\npipeline: shop\nsource: {{dsn: 'postgresql://u:{SECRET}@h/d'}}\nspool: {{uri: 's3://b/x', options: {{aws_secret_acess_key: '{SECRET}'}}}}\nlake: {{uri: 'file:///tmp/y'}}\napply: {{conf: {{spark.hadoop.fs.s3a.secret.key: {SECRET}}}}}\n",
    ],
    ids=["dsn-map", "misspelt", "broken-yaml", "source-text", "uris", "dsn-kv", "options-list", "options"],
)
def test_no_secret_is_shown(database: Database, tmp_path: Path, text: str) -> None:
    pipe = Pipe(database, tmp_path)
    pipe.config.write_text(text)
    leaks = []
    for command in ("config validate", "config show", "config show --json", "status --json", "slot show"):
        ended = pipe(*command.split(), timeout=100)
        if SECRET in ended.stdout + ended.stderr:
            leaks.append((command, ended.returncode, [l for l in (ended.stdout + ended.stderr).splitlines() if SECRET in l][:3]))
        else:
            print(command, ended.returncode, ended.stderr[:300].replace("\n", "|"))
    assert not leaks, leaks
