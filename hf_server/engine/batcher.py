"""Texts of requests that arrive together go through the model together."""

import logging
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import torch

from hf_server.engine.cores import Cores
from hf_server.engine.encoder import Encoder
from hf_server.errors import ApiError, ClientGone, OutOfMemory, Overloaded, Stopping
from hf_server.metrics import Metrics
from hf_server.texts import TextJob

logger = logging.getLogger("hf_server")


class Batcher(Thread):
    """Owns the model. Each turn: a share of every waiting request, sorted by length, in few passes.

    Nothing waits for company: while one pass runs, the texts for the next come together. Ends after `close`.

    Args:
        pass_tokens: most tokens of one pass, padding included (one long text may have more).
        max_queue: requests that may wait or be under way.
    """

    def __init__(self, encoder: Encoder, *, pass_tokens: int, max_queue: int, metrics: Metrics):
        super().__init__(name="batcher", daemon=True)
        self._encoder = encoder
        self._pass_tokens = pass_tokens
        self._max_queue = max_queue
        self._metrics = metrics
        self._inbox: SimpleQueue[TextJob | None] = SimpleQueue()  # None: close
        self._lock = Lock()  # guards _open
        self._open = 0  # jobs submitted and not ended
        self._cores = Cores()
        self._jobs: deque[TextJob] = deque()  # with texts that no pass had yet; the thread's own

    def submit(self, job: TextJob) -> None:
        """Queue a request's texts; the caller then waits on the job and calls `release`.

        Raises:
            Overloaded: too many wait already.
        """
        with self._lock:
            if self._open >= self._max_queue:
                raise Overloaded(f"{self._open} requests wait already; try again later")
            self._open += 1
            self._metrics.processing.set(self._open)
        self._inbox.put(job)

    def release(self) -> None:
        """A submitted job has ended."""
        with self._lock:
            self._open -= 1
            self._metrics.processing.set(self._open)

    def close(self) -> None:
        """Fail what waits, then end. Safe in a signal handler."""
        self._inbox.put(None)

    def run(self) -> None:
        with torch.inference_mode():
            while self._take_in():
                self._cores.adapt()
                items = self._next_items()
                try:
                    for batch in self._passes(items):
                        self._run_pass(batch)
                except torch.OutOfMemoryError:
                    logger.exception("event=out_of_memory texts=%d", len(items))
                    self._fail(items, OutOfMemory("the device ran out of memory"))
                except Exception:
                    logger.exception("event=turn_failed texts=%d", len(items))
                    self._fail(items, ApiError("the model failed on these texts; the log has the reason"))
        for job in self._jobs:
            job.fail(Stopping("the server is stopping"))

    def _take_in(self) -> bool:
        """Move the inbox to the jobs, waiting while there are none; False to end."""
        while True:
            try:
                job = self._inbox.get(block=not self._jobs)
            except Empty:
                return True
            if job is None:
                return False
            self._jobs.append(job)

    def _next_items(self) -> list[tuple[TextJob, int]]:
        """One text of each waiting request in turn, up to two passes' worth of tokens."""
        items: list[tuple[TextJob, int]] = []
        budget = 2 * self._pass_tokens
        while self._jobs and budget > 0:
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

    def _passes(self, items: Sequence[tuple[TextJob, int]]) -> list[list[tuple[TextJob, int]]]:
        """Cut into passes of similar lengths."""
        passes: list[list[tuple[TextJob, int]]] = []
        width = 0
        for item in sorted(items, key=lambda item: -len(item[0].texts[item[1]])):
            length = len(item[0].texts[item[1]])
            fits = passes and (len(passes[-1]) + 1) * width <= self._pass_tokens
            if not fits or (length != width and not self._encoder.can_pad):
                passes.append([])
                width = length
            passes[-1].append(item)
        return passes

    def _run_pass(self, batch: Sequence[tuple[TextJob, int]]) -> None:
        self._metrics.batch.observe(len(batch))
        vectors = self._encoder.encode([job.texts[place] for job, place in batch])
        for (job, place), vector in zip(batch, vectors, strict=True):
            job.put(place, vector)

    def _fail(self, items: Sequence[tuple[TextJob, int]], error: ApiError) -> None:
        for job in {id(job): job for job, _ in items}.values():
            if job in self._jobs:
                self._jobs.remove(job)
            job.fail(error)
