"""`sluice` whose event loop stands still from the moment that the file $STALL exists, as after a bug."""

import asyncio
import os
import time
from pathlib import Path

from sluice.cli import main
from sluice.health.endpoint import Health
from sluice.process.pipeline import Process

_run = Process.run


async def run(self: Process, **options: object) -> int:
    async def stall() -> None:
        wanted = Path(os.environ["STALL"])
        while not await asyncio.to_thread(wanted.exists):  # noqa: ASYNC110 - another process says when
            await asyncio.sleep(0.2)
        await asyncio.to_thread(wanted.with_name("stalled").touch)
        time.sleep(600)  # noqa: ASYNC251 - this is the fault

    task = asyncio.create_task(stall())
    try:
        return await _run(self, **options)  # type: ignore[arg-type]
    finally:
        task.cancel()


assert Health.__init__.__kwdefaults__ is not None
Health.__init__.__kwdefaults__["loop_seconds"] = 5.0  # the minute that it is would only make the tests long
Process.run = run  # type: ignore[method-assign]
main()
