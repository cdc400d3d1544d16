"""A parent to be killed: starts a worker on a long level, prints its pid once it generates, and waits."""

import asyncio
import sys
import time

from fakes.truth import Worker
from llmtop.load.plan import Level, Plan


async def main(url: str) -> None:
    plan = Plan(url=url, levels=(Level("c=4", 4, 100, 32, 500),), warm_up=False)
    worker = await Worker.start(plan)
    worker.say(cmd="preflight")
    await worker.hear("preflight")
    worker.say(cmd="prepare", level=0, share={"slots": 4})
    await worker.hear("ready")
    worker.say(cmd="go", t0=time.perf_counter())
    while sum(lane[1] == "decode" for lane in (await worker.hear("snap"))["lanes"]) < 4:
        pass
    print(worker.process.pid, flush=True)
    await worker.hear("level")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
