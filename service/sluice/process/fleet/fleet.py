"""Runs the pipelines of a folder: starts, watches, reloads and stops their processes, and answers for all.

Invariants: a pipeline that fails, or whose file is refused, changes nothing for the others. What is in
force changes at the start and on SIGHUP only, by one reading of the folder that both sides get. No child
outlives this process. Holds no logic of ingest or applier.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from sluice import signals
from sluice.errors import Interrupted, UsageError
from sluice.health.endpoint import UNIX, Answer, Health, HealthServer
from sluice.health.verdict import worst
from sluice.process.child_process import ChildProcess, Launch, executing
from sluice.process.fleet.asking import ask, ask_json
from sluice.process.fleet.member import Folder, Member, document, require_members
from sluice.process.fleet.page import page
from sluice.process.fleet.running import Running
from sluice.process.pipeline import ApplierCommand
from sluice.telemetry.catalogue import FLEET_RESTARTS, FLEET_RUNNING
from sluice.telemetry.exposition import merged
from sluice.telemetry.metrics import Metrics

_AT_ONCE = 8
_APPLIER = "applier.sock"
_OURS = "fleet"
_OVER_SECONDS = 5.0
"""Beyond the longest stop of a pipeline, for the applier's JVM."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Where the page is served, with the token in a file if there is one, how to start the applier, and an
    ingest from its arguments. `workers` windows are applied at once, over all pipelines.
    """

    listen: str
    token_path: str
    workers: int
    applier: ApplierCommand
    launch: Launch


def run(read: Callable[[], Folder], options: FleetOptions) -> int:
    """Runs what `read` finds until a signal asks to stop. Raises UsageError when there is nothing to run or
    nowhere to listen, Interrupted when a process had to be killed.
    """
    fleet = Fleet(read, options)
    try:
        fleet.run()
    finally:
        fleet.close()
    return 0


class Fleet:
    """`run` returns when a signal asked to stop, and all children have ended."""

    def __init__(self, read: Callable[[], Folder], options: FleetOptions) -> None:
        self._read, self._options = read, options
        self._sockets = Path(tempfile.mkdtemp(prefix="sluice-fleet-"))  # for this user alone
        self._log = structlog.get_logger("fleet")
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._refused: Mapping[str, str] = {}
        self._asked, self._stopped = threading.Event(), threading.Event()
        self._metrics: dict[str, Metrics] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fleet")
        applier = options.applier
        self._applier = ChildProcess(
            [*applier.command, "--listen", f"{UNIX}{self._sockets / _APPLIER}", "--workers", str(options.workers)],
            launch=executing(applier.environment, fed=True),
            on_end=lambda _code: None,
            # Whatever it ends with concerns no pipeline alone: those have their own errors.
            passing=range(256),
            feed=self._document,
        )

    def run(self) -> None:
        folder = require_members(self._read())
        health = Health(Metrics("", component=_OURS))
        server = HealthServer(
            self._options.listen,
            metrics=self,
            health=health,
            status=self.status,
            page=lambda: page(self.status()),
            beside=self._beside,
            setting="--listen",
            token_file=self._options.token_path,
        )
        signals.arm().hand_to(self._stop)
        signals.arm().hand_reload_to(self._asked.set)
        self._log.info("listening", address=server.address, pipelines=len(folder.members))
        try:
            self._take(folder)
            self._applier.start()
            health.started()
            health.ready()
            while True:
                self._asked.wait()
                self._asked.clear()
                if self._stopped.is_set():
                    break
                self._reload()
            health.not_ready("stopping")
            self._end()
        finally:
            server.close()

    def close(self) -> None:
        """Nothing of it is left."""
        for one in self._running.values():
            one.stop()
        self._applier.stop(timeout_seconds=0.0)
        self._pool.shutdown()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _stop(self, number: signal.Signals) -> None:
        self._log.info("stopping, a second signal exits at once", signal=number.name)
        self._stopped.set()
        # Here, and not where this is noticed: to take a folder, one waits for processes that are replaced.
        for one in self._snapshot():
            one.terminate()
        self._applier.terminate()
        self._asked.set()

    def _reload(self) -> None:
        try:
            folder = self._read()
        except UsageError as error:
            self._log.error("the folder cannot be read, so nothing changes", error=str(error), hint=error.hint)
            return
        self._take(folder)
        # In its own time: one that does not read must not keep us from stopping.
        threading.Thread(target=self._applier.feed_again, name="feed", daemon=True).start()

    def _take(self, folder: Folder) -> None:
        """Starts, replaces and ends ingests. The ingest of a file that is refused now goes on as it is."""
        for config, reason in sorted(folder.refused.items()):
            self._log.error("a configuration is refused", config=config, reason=reason)
        kept = {name for name, one in self._running.items() if one.member.config in folder.refused}
        removed = self._running.keys() - folder.members.keys() - kept
        with self._lock:
            self._refused = folder.refused
            ending = [self._running.pop(name) for name in sorted(removed)]
            for name in kept:
                self._running[name].refused = folder.refused[self._running[name].member.config]
        for one in ending:
            one.terminate()
        stops = [self._pool.submit(self._ended, one) for one in ending]
        for name, member in sorted(folder.members.items()):
            self._join(name, member)
        for stop in stops:
            stop.result()

    def _join(self, name: str, member: Member) -> None:
        one = self._running.get(name)
        if one is None:
            with self._lock:
                if self._stopped.is_set():
                    return
                one = self._running[name] = Running(member, self._options.launch, self._sockets)
                one.start()
            self._log.info("a pipeline joins", pipeline=name, config=member.config)
            return
        one.refused = ""
        if dict(one.member.fixed) != dict(member.fixed) or one.member.config != member.config:
            self._log.info("the settings of a pipeline changed, its processes begin again", pipeline=name)
            one.replace(member)
        else:
            one.member = member
            one.again()

    def _ended(self, one: Running) -> None:
        one.stop()
        self._metrics.pop(one.member.name, None)
        self._log.info("a pipeline left", pipeline=one.member.name)

    def _end(self) -> None:
        """Lets all children finish what they hold. Raises Interrupted for those that did not in their time."""
        for one in self._running.values():
            one.terminate()
        self._applier.terminate()
        seconds = max((one.member.stop_seconds for one in self._running.values()), default=0.0)
        list(self._pool.map(Running.stop, self._running.values()))
        self._applier.stop(timeout_seconds=seconds + _OVER_SECONDS)
        codes = [*(one.last_code for one in self._running.values() if one.ended is None), self._applier.last_code or 0]
        if any(code in (Interrupted.exit_code, 128 + signal.SIGKILL) for code in codes):
            raise Interrupted(
                "a process of the fleet could not finish in its time",
                hint="nothing is lost: the server sends again what was not acknowledged",
            )
        self._log.info("all pipelines have stopped")

    def _document(self) -> bytes:
        """All pipelines that are to be applied: one line."""
        return document(one.member for one in self._snapshot())

    def _snapshot(self) -> list[Running]:
        with self._lock:
            return [self._running[name] for name in sorted(self._running)]

    # what it answers

    def status(self) -> dict[str, Any]:
        """What every pipeline, and the applier for it, says of itself."""
        parts = self._snapshot()
        applying = self._pool.submit(ask_json, str(self._sockets / _APPLIER), "/status")
        rows = list(self._pool.map(Running.status, parts))
        applied = (applying.result() or {}).get("pipelines", {})
        unheard = self._unheard()
        for row in rows:
            row["apply"] = applied.get(row["pipeline"], unheard)
            if row["apply"]["error"] and row["state"] == "healthy":
                row["state"], row["headline"] = "degraded", f"the applier: {row['apply']['error']}"
        shown = {row["config"] for row in rows}
        refused = [{"config": name, "reason": why} for name, why in self._refused.items() if name not in shown]
        states = [row["state"] for row in rows] + ["degraded"] * bool(refused)
        return {
            "schema_version": 1,
            "state": worst(states),
            "applier": {"running": self._applier.running, "restarts": self._applier.restarts},
            "pipelines": rows,
            "refused": refused,
        }

    def _unheard(self) -> dict[str, Any]:
        """What is said of a pipeline of which the applier says nothing."""
        code = self._applier.last_code
        if self._applier.running or code is None:
            return {"state": "starting", "error": None, "exit_code": None}
        return {"state": "stopped", "error": f"it ended with exit code {code} and is started again", "exit_code": code}

    def render(self) -> bytes:
        """The metrics of all processes."""
        parts, seen = self._snapshot(), self._applier
        answers = [self._pool.submit(ask, one.socket, "/metrics") for one in parts if one.runs]
        answers.append(self._pool.submit(ask, str(self._sockets / _APPLIER), "/metrics"))
        texts: list[tuple[str, bytes]] = []
        for one in parts:
            metrics = self._metrics.setdefault(one.member.name, Metrics(one.member.name, component=_OURS))
            metrics.set(FLEET_RUNNING, float(one.runs), part="ingest")
            metrics.set(FLEET_RUNNING, float(seen.running), part="apply")
            metrics.advance_to(FLEET_RESTARTS, one.all_restarts, part="ingest")
            metrics.advance_to(FLEET_RESTARTS, seen.restarts, part="apply")
            texts.append((_OURS, metrics.render()))
        for number, answer in enumerate(answers):
            found = answer.result()
            if found is not None and found.code == 200:
                texts.append(("apply" if number == len(answers) - 1 else "ingest", found.content))
        return merged(texts)

    def _beside(self, path: str, query: str) -> Answer | None:
        """/pipelines/NAME/ and what is below it: the page, /status, /history and /wait of one pipeline."""
        _, group, name, *rest = [*path.split("/"), "", ""][: max(4, path.count("/") + 1)]
        one = next((one for one in self._snapshot() if one.member.name == name), None)
        if group != "pipelines" or one is None:
            return None
        below = "/".join(rest)
        where, target = one.socket, f"/{below}"
        if below == "wait":
            where, target = str(self._sockets / _APPLIER), f"/{name}/wait"
        asked = ask(where, target + (f"?{query}" if query else ""), seconds=_patience(below))
        return asked or Answer(503, f"{name} does not answer; /status says more\n".encode())


def _patience(below: str) -> float:
    """Who waits for a position may do so for minutes."""
    return 3600.0 if below == "wait" else 15.0


def environment() -> dict[str, str]:
    """Of the children. Each is given its own configuration."""
    return {name: value for name, value in os.environ.items() if name != "SLUICE_CONFIG"}
