"""One pipeline and all places that say how it is."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.manifest.reader import load_state
from sluice.store.opening import open_store
from tests.support import commands
from tests.support.answers import ask
from tests.support.command_line import Sluice
from tests.support.reasons import because
from tests.support.recorded import rows
from tests.support.sources import Database

ROOT = Path(__file__).parents[2]


class Pipe:
    """Its commands are processes of their own, or run by `command`."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        name: str = "shop",
        extra: str = "",
        dsn: str = "",
        tables: str = '["public.*"]',
        spool: str = "",
        command: Sluice | None = None,
    ) -> None:
        self.database, self.folder, self.name, self.command = database, folder, name, command
        self.config = folder / f"{name}.yaml"
        self.config.write_text(
            f"""\
version: 1
pipeline: {name}
source: {{dsn: "{dsn or database.dsn}", slot: {database.slot}, publication: {database.publication}, tables: {tables}}}
spool: {{uri: "{spool or f"file://{folder}/spool"}", max_delay: 50ms}}
lake: {{uri: "file://{folder}/lake"}}
telemetry: {{listen: "127.0.0.1:0", apply_listen: "127.0.0.1:0", log_format: json}}
{extra}
""",
            encoding="utf-8",
        )
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")} | {
            "PYTHONPATH": str(ROOT),
            "SLUICE_CONFIG": str(self.config),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"

    def __call__(self, *arguments: str, **env: str) -> commands.Done:
        """A command, to its end: within the test's process where it has `command`, which starts in less time."""
        environment = {**self.environment, **env}
        if self.command is None:
            return commands.sluice(*arguments, env=environment)
        return self.command(*arguments, cwd=None, **{k: v for k, v in environment.items() if k.startswith("SLUICE_")})

    def start(self, *arguments: str, program: tuple[str, ...] = ("-m", "sluice"), **env: str) -> "Pipe":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *(arguments or ("run",))],
                env={**self.environment, **env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait(self, what: Callable[[], Any], seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < end, f"never came; log: {self.log.read_text()[-3000:]}"
            time.sleep(0.3)
        return found

    def streaming(self) -> "Pipe":
        self.wait(lambda: any(e["event"] == "streaming" for e in self.events()))
        return self

    @property
    def address(self) -> str:
        return str(self.wait(lambda: [e["address"] for e in self.events() if "address" in e])[0])

    def get(self, path: str, timeout: float = 30) -> tuple[int, str]:
        try:
            return ask(self.address, path, timeout=timeout)
        except (http.client.HTTPException, OSError) as error:
            return 0, repr(error)

    @property
    def store(self) -> Any:
        return open_store(f"file://{self.folder}/spool", prefix=f"{self.name}/", options={})

    def live(self) -> "Pipe":
        self.wait(
            lambda: (t := load_state(self.store).tables) and {x.state for x in t.values()} <= {"live", "quarantined"}
        )
        return self

    def applied(self, number: int = 1, *, state: str = "live", reason: str = "") -> None:
        at = datetime.now(UTC).isoformat()
        tables = rows(load_state(self.store), state, why=because(reason))
        self.store.create(keys.apply_log(number), AppliedLog(number, "host/1/a", at, tables, at).encode())

    def health(self) -> list[str]:
        text = self.get("/metrics")[1]
        return [
            line
            for line in text.splitlines()
            if line.startswith(("sluice_health{", "sluice_problems{")) and not line.endswith(" 0.0")
        ]


def orders(database: Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a')")
