"""Texts of requests that arrive together go through the model together."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from threading import Condition, Thread

import torch

from hf_server.engine.cores import Cores
from hf_server.engine.encoder import Encoder
from hf_server.errors import ApiError, ClientGone, OutOfMemory, Overloaded, Stopping
from hf_server.metrics import Metrics
from hf_server.texts import TextJob

_PAUSE_S = 0.005  # without a new text: those that come together are here
_GATHER_S = 0.025  # less than a pass of several texts takes
_WORTH_ALL_CORES = 64  # tokens: a smaller pass is over sooner on one core than shared among two

logger = logging.getLogger("hf_server")

Item = tuple[TextJob, int]  # a request, and the place of one of its texts


class Batcher:
    """Owns the model. Each turn of a lane: a share of every waiting request, sorted by length, in few passes.

    A lane is a thread with cores of its own. On a CPU several passes at once do more than one pass after
    another on all cores, whose threads would wait for each other after every operation, and for the request
    threads too. A text that comes alone does not wait for company: while passes run, those for the next come
    together.

    Args:
        lanes: passes at once.
        pass_tokens: most tokens of one pass, padding included (one long text may have more).
        max_queue: requests that may wait or be under way.
    """

    def __init__(self, encoder: Encoder, *, lanes: int, pass_tokens: int, max_queue: int, metrics: Metrics):
        self._encoder = encoder
        self._pass_tokens = pass_tokens
        self._max_queue = max_queue
        self._metrics = metrics
        self._lanes = [Thread(target=self._work, name=f"lane-{n}", daemon=True) for n in range(lanes)]
        self._work_or_end = Condition()  # its lock guards the rest
        self._jobs: deque[TextJob] = deque()  # with texts that no pass had yet
        self._open = 0  # jobs submitted and not ended
        self._resting = 0  # lanes
        self._closed = False
        self._cores = Cores()

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def submit(self, job: TextJob) -> None:
        """Queue a request's texts; the caller then waits on the job and calls `release`.

        Raises:
            Overloaded: too many wait already.
            Stopping: the server is.
        """
        with self._work_or_end:
            if self._closed:
                raise Stopping("the server is stopping")
            if self._open >= self._max_queue:
                raise Overloaded(f"{self._open} requests wait already; try again later")
            self._open += 1
            self._metrics.processing.set(self._open)
            self._jobs.append(job)
            self._work_or_end.notify(len(job.texts))

    def release(self) -> None:
        """A submitted job has ended."""
        with self._work_or_end:
            self._open -= 1
            self._metrics.processing.set(self._open)

    def close(self) -> None:
        """Fail what waits; the lanes end after their passes."""
        with self._work_or_end:
            self._closed = True
            while self._jobs:
                self._jobs.popleft().fail(Stopping("the server is stopping"))
            self._work_or_end.notify_all()

    def _work(self) -> None:
        """One lane, until `close`."""
        with torch.inference_mode():
            while (turn := self._next_turn()) is not None:
                items, threads = turn
                if threads != torch.get_num_threads():
                    torch.set_num_threads(threads)  # this lane's alone
                try:
                    for batch in self._passes(items):
                        self._run_pass(batch)
                except torch.OutOfMemoryError:
                    logger.exception("event=out_of_memory texts=%d", len(items))
                    self._fail(items, OutOfMemory("the device ran out of memory"))
                except Exception:
                    logger.exception("event=turn_failed texts=%d", len(items))
                    self._fail(items, ApiError("the model failed on these texts; the log has the reason"))

    def _next_turn(self) -> tuple[list[Item], int] | None:
        """Wait for texts; those to take, and how many threads torch is to use for them. None to end."""
        with self._work_or_end:
            self._resting += 1
            if self._resting == len(self._lanes) and not self._jobs:
                self._cores.rest()
            self._work_or_end.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return None
            self._gather()
            items = self._take()
            self._resting -= 1
            if self._jobs:
                self._work_or_end.notify()  # what woke this lane may have been meant for another
            return items, self._threads(items)

    def _gather(self) -> None:
        """While other lanes are at work: wait for as long as more texts keep coming.

        Those that a pass has answered ask again one after another, and few of them make a poor pass.
        """
        known, end = 0, time.monotonic() + _GATHER_S
        while known < len(self._jobs) and self._resting < len(self._lanes) and time.monotonic() < end:
            known = len(self._jobs)
            self._work_or_end.wait(_PAUSE_S)

    def _take(self) -> list[Item]:
        """One text of each waiting request in turn: a resting lane's share, at most two passes' worth."""
        waiting = sum(len(job.texts) - job.begun for job in self._jobs)
        share = -(-waiting // self._resting)
        items: list[Item] = []
        budget = 2 * self._pass_tokens
        while self._jobs and budget > 0 and len(items) < share:
            job = self._jobs.popleft()
            if job.is_abandoned():
                job.fail(ClientGone("the client is gone"))
                continue
            items.append((job, job.begun))
            budget -= len(job.texts[job.begun])
            job.begun += 1
            if job.begun < len(job.texts):
                self._jobs.append(job)
        return items

    def _threads(self, items: Sequence[Item]) -> int:
        """All cores that are left for work that comes alone, otherwise a lane's part of them."""
        cores = self._cores.left()
        is_alone = self._resting == len(self._lanes) - 1 and not self._jobs
        if is_alone and sum(len(job.texts[place]) for job, place in items) >= _WORTH_ALL_CORES:
            return cores
        return max(1, cores // len(self._lanes))

    def _passes(self, items: Sequence[Item]) -> list[list[Item]]:
        """Cut into passes of similar lengths."""
        passes: list[list[Item]] = []
        width = 0
        for item in sorted(items, key=lambda item: -len(item[0].texts[item[1]])):
            length = len(item[0].texts[item[1]])
            fits = passes and (len(passes[-1]) + 1) * width <= self._pass_tokens
            if not fits or (length != width and not self._encoder.can_pad):
                passes.append([])
                width = length
            passes[-1].append(item)
        return passes

    def _run_pass(self, batch: Sequence[Item]) -> None:
        self._metrics.batch.observe(len(batch))
        vectors = self._encoder.encode([job.texts[place] for job, place in batch])
        for (job, place), vector in zip(batch, vectors, strict=True):
            job.put(place, vector)

    def _fail(self, items: Sequence[Item], error: ApiError) -> None:
        with self._work_or_end:
            for job in {id(job): job for job, _ in items}.values():
                if job in self._jobs:
                    self._jobs.remove(job)
                job.fail(error)
