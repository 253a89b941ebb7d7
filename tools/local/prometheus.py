"""A Prometheus server of our own on loopback: scrapes the targets that it is given, evaluates rules, answers
queries.

Invariant: a server that was started here does not outlive its owner. Keeps its data below
`directory`. What it says is read through its HTTP API, as a dashboard would. (Prometheus: HTTP
API.)
"""

import contextlib
import http.client
import json
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tools.local.binaries import LocalServerError
from tools.local.child import Child
from tools.local.ports import free_port
from tools.local.tools import CACHE, tool

_STOP_DEADLINE_SECONDS = 20.0
_ANSWER_SECONDS = 30.0


class QueryRefused(LocalServerError):
    """Prometheus refused an expression; the message is Prometheus's own."""


@dataclass(frozen=True, slots=True)
class Series:
    """One element of an answer. An instant query gives one sample, a range query as many as there
    were; times are unix seconds.
    """

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest sample."""
        return self.samples[-1][1]


class PrometheusServer:
    """One server on 127.0.0.1:`port` that scrapes `targets` (job name to `host:port` addresses) and
    evaluates the files in `rules`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        targets: Mapping[str, Sequence[str]],
        rules: Sequence[Path] = (),
        port: int | None = None,
        interval: str = "1s",
        retention: str = "1d",
    ) -> None:
        self.directory = directory.resolve()
        self.port = port or free_port()
        self.log_path = self.directory / "prometheus.log"
        self._retention = retention
        self._child = Child(f"Prometheus on port {self.port}", last_signal=signal.SIGKILL, log=self.log_path)
        self._configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                for job, addresses in targets.items()
            ],
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        """Returns when queries are answered. Does nothing when the server runs already. Raises
        LocalServerError, also where there is no Prometheus.
        """
        if self.pid is None:
            self._child.start(self.command(), is_ready=lambda _pid: self._ready(), directory=self.directory)

    def command(self) -> list[str]:
        """What runs the server in the foreground; writes its configuration. Raises LocalServerError
        where there is no Prometheus.
        """
        program = tool("prometheus")
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(self._configuration, sort_keys=False))
        command = [str(program), f"--config.file={configuration}", f"--storage.tsdb.path={self.directory / 'data'}"]
        command += [
            f"--storage.tsdb.retention.time={self._retention}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        if program.is_relative_to(CACHE):
            # Debian builds look for their pages in the system's folders, where an unpacked package
            # has put nothing.
            command.append(f"--web.local-assets={program.parents[1] / 'share' / 'prometheus' / 'web'}")
        return command

    def stop(self) -> None:
        """Returns when the server is gone; its data stays in `directory`."""
        self._child.stop(signal.SIGTERM, patience_seconds=_STOP_DEADLINE_SECONDS)

    def query(self, expression: str, *, at: float | None = None) -> list[Series]:
        """The expression's value now, or at a time. Raises QueryRefused."""
        return _series(self._data("query", {"query": expression, **({} if at is None else {"time": at})}))

    def query_range(self, expression: str, *, start: float, end: float, step: float) -> list[Series]:
        """The expression's values from `start` to `end`. Raises QueryRefused."""
        return _series(self._data("query_range", {"query": expression, "start": start, "end": end, "step": step}))

    def alerts(self) -> list[dict[str, Any]]:
        """Active alerts: each with `labels`, `annotations`, `state` (pending or firing), `activeAt`
        and `value`.
        """
        found: list[dict[str, Any]] = self._data("alerts", {})["alerts"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        """Every rule of every group, with `health` and `lastError` of its last evaluation."""
        return [rule for group in self._data("rules", {})["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped: `labels`, `health` (up, down, unknown), `lastError`."""
        found: list[dict[str, Any]] = self._data("targets", {"state": "active"})["activeTargets"]
        return found

    def _data(self, endpoint: str, parameters: Mapping[str, str | float]) -> Any:
        status, body = self._get(f"/api/v1/{endpoint}?{urlencode(parameters)}")
        answer = json.loads(body) if body.startswith(b"{") else {}
        if answer.get("status") != "success":
            raise QueryRefused(
                f"Prometheus refused {parameters.get('query', endpoint)}: {answer.get('error', f'HTTP {status}')}"
            )
        return answer["data"]

    def _ready(self) -> bool:
        try:
            return self._get("/-/ready")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextlib.contextmanager
def running_prometheus(
    targets: Mapping[str, Sequence[str]], *, rules: Sequence[Path] = (), interval: str = "1s"
) -> Iterator[PrometheusServer]:
    """A server with its data in a temporary folder; stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="sluice-prometheus-") as directory:
        server = PrometheusServer(Path(directory), targets=targets, rules=rules, interval=interval)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _series(data: Any) -> list[Series]:
    """Scalars, vectors and matrices alike."""
    if data["resultType"] in ("scalar", "string"):
        return [Series({}, (_sample(data["result"]),))]
    return [
        Series(element["metric"], tuple(map(_sample, element.get("values") or [element["value"]])))
        for element in data["result"]
    ]


def _sample(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
