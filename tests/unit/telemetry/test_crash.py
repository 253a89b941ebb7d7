"""A process that fails in a way nobody foresaw tells its place and nothing of its data, and leaves no core."""

import resource
import signal
import subprocess
import sys

import pytest

from tests.support import canary, commands

PRELUDE = f"""
import gc, os, signal, sys, threading, asyncio, logging
from sluice.telemetry import logs
from sluice.telemetry.crash import leave_no_values_behind
leave_no_values_behind()
if sys.argv[1] == "logging": logs.configure(log_format="json", level="info")
value = "{canary.ROW}"
def fail(*_): raise ValueError(f"could not convert {{value}}")
class Holder:
    def __del__(self): fail()
async def lose():
    task = asyncio.ensure_future(asyncio.to_thread(fail))
    await asyncio.sleep(0.05)
    del task
    gc.collect()
async def call_back():
    asyncio.get_running_loop().call_soon(fail, value)
    await asyncio.sleep(0.05)
"""
WAYS = {
    "nobody caught it": "fail()",
    "in a thread": "t = threading.Thread(target=fail); t.start(); t.join()",
    "in a finaliser": "h = Holder(); del h; gc.collect()",
    "a task that nobody waited for": "asyncio.run(lose())",
    "a callback of the loop": "asyncio.run(call_back())",
}
EARLY = ("nobody caught it", "in a thread", "in a finaliser")
"""Those that are possible before logs are set up."""


def ending(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return commands.ended(sys.executable, "-c", PRELUDE + code, *arguments)


@pytest.mark.parametrize(("way", "logs"), [*((way, "logging") for way in WAYS), *((way, "silent") for way in EARLY)])
def test_an_error_that_nobody_catches_is_named_and_placed_without_its_text(way: str, logs: str) -> None:
    done = ending(WAYS[way], logs)
    assert canary.ROW not in done.stdout + done.stderr
    assert "ValueError" in done.stderr
    assert "fail" in done.stderr or logs == "silent"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_fatal_signal_shows_where_and_no_values_and_dumps_no_core(number: signal.Signals) -> None:
    limit = f"print(__import__('resource').getrlimit({resource.RLIMIT_CORE}), flush=True); "
    done = ending(f"{limit}os.kill(os.getpid(), {int(number)})", "silent")
    assert done.returncode == -number
    assert done.stdout == "(0, 0)\n"
    assert "most recent call first" in done.stderr
    assert canary.ROW not in done.stderr


@pytest.mark.parametrize(("program", "arguments"), [("sluice.cli", ["version"]), ("sluice_spark.cli", [])])
def test_both_processes_begin_so(program: str, arguments: list[str]) -> None:
    run = f"import sys, resource, {program}\nsys.argv[1:] = {arguments}\ntry: {program}.main()\n"
    code = f"{run}except SystemExit: print('limit', resource.getrlimit(resource.RLIMIT_CORE))"
    resource.prlimit(0, resource.RLIMIT_CORE)
    done = commands.ended(sys.executable, "-c", code)
    assert done.stdout.endswith("limit (0, 0)\n")
