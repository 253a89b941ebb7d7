"""`sluice` whose event loop stands still from the moment that the file $STALL exists (as after a bug, or a call that never returns)."""

import asyncio
import os
import time
from pathlib import Path

from service.cli import main
from service.runtime.pipeline import Process

_run = Process.run


async def run(self: Process, **options: object) -> int:
    async def stall() -> None:
        while not Path(os.environ["STALL"]).exists():
            await asyncio.sleep(0.2)
        time.sleep(600)  # noqa: ASYNC251 - this is the fault

    task = asyncio.create_task(stall())
    try:
        return await _run(self, **options)  # type: ignore[arg-type]
    finally:
        task.cancel()


Process.run = run  # type: ignore[assignment, method-assign]
main()
