"""Requests of several clients, computed together by one thread.

A row keeps its number in its own request, from which its random numbers are made (`diffusion.random`), so that an
answer does not depend on the requests that it is computed with, except in the rounding of float32.
"""

import asyncio
import functools
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from mm_ldlm.app.console import frame_of
from mm_ldlm.extras.service.requests import Job
from mm_ldlm.inference.api import MMLDLM

MOST_JOBS = 32
"""Largest number of requests that are computed together; the first of more would wait long"""
Rows = list[dict[str, Any]]
"""Rows of the table of a result"""


class Batches:
    """The queue of jobs, and the thread that computes them.

    Args:
        window: seconds that a job waits for others.
        observe: is called with the number of jobs of each computation, before it.
    """

    def __init__(self, model: MMLDLM, *, window: float, observe: Callable[[int], Any]) -> None:
        self.model, self.window, self.observe = model, window, observe
        self.queue: asyncio.Queue[tuple[Job, asyncio.Future[Rows | Exception]]] = asyncio.Queue()

    async def answer(self, job: Job) -> Rows:
        """Return the rows of the answer; raises what the request raises."""
        future: asyncio.Future[Rows | Exception] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((job, future))
        found = await future
        if isinstance(found, Exception):
            raise found
        return found

    async def run(self) -> None:
        """Compute jobs until the task is cancelled."""
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        while True:
            waiting = [await self.queue.get()]
            await asyncio.sleep(self.window)
            waiting += [self.queue.get_nowait() for _ in range(min(self.queue.qsize(), MOST_JOBS - 1))]
            for key in dict.fromkeys(job.key for job, _ in waiting):
                group = [each for each in waiting if each[0].key == key]
                found = await loop.run_in_executor(thread, self.compute, [job for job, _ in group])
                for (_, future), answer in zip(group, found, strict=True):
                    if not future.done():  # otherwise its client has gone
                        future.set_result(answer)

    def compute(self, jobs: Sequence[Job]) -> list[Rows | Exception]:
        """Return the answer of each job, or its error; a job that is refused leaves the others as they are."""
        try:
            return [*self._together(jobs)]
        except Exception as error:
            if len(jobs) == 1:
                return [error]
        half = len(jobs) // 2
        return self.compute(jobs[:half]) + self.compute(jobs[half:])

    def _together(self, jobs: Sequence[Job]) -> list[Rows]:
        self.observe(len(jobs))
        first, alone = jobs[0], len(jobs) == 1
        self.model.writer.numbers = None if alone else [row for job in jobs for row in range(job.rows)]
        columns = {name: functools.reduce(operator.add, [job.columns[name] for job in jobs]) for name in first.columns}
        rows = frame_of(first.function(self.model, **columns, **first.options)).to_dict("records")
        each = iter(rows)
        return [rows] if alone else [[*islice(each, job.rows)] for job in jobs]
