"""Continuous batching: answers share forward passes, and a new one joins at the next token."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import torch

from hf_server import log
from hf_server.engine.answers import Answer
from hf_server.engine.batch import Batch, SeparateBatch, SharedBatch
from hf_server.engine.cores import Cores
from hf_server.engine.language import LanguageModel
from hf_server.engine.prefill import Prefill
from hf_server.engine.prefixes import Prefixes
from hf_server.engine.sampling import choose_tokens
from hf_server.errors import ApiError, ClientGone, OutOfMemory, Overloaded, Stopping
from hf_server.generation import Decode, Failed, Generation
from hf_server.metrics import Metrics

_PREFILL_TOKENS = 512  # of prompts between two steps of the running answers
_PROGRESS_S = 1.0

logger = logging.getLogger("hf_server")


class Scheduler(Thread):
    """Owns the model. Each turn: take requests in, prefill some prompt tokens, one token for every answer.

    Requests come by `submit` from any thread; answers leave by each generation's outbox. An answer whose
    client is gone is dropped before the next token. Ends after `close`.

    Args:
        kv_tokens: how many tokens' keys and values fit into memory, prefixes of ended answers included.
        max_batch: answers generated at once.
        max_queue: requests that may wait.
    """

    def __init__(
        self,
        model: LanguageModel,
        decode: Decode,
        *,
        layers: int,
        kv_tokens: int,
        max_batch: int,
        max_queue: int,
        metrics: Metrics,
    ):
        super().__init__(name="scheduler", daemon=True)
        self._model = model
        self._decode = decode
        self._metrics = metrics
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._prefixes = Prefixes(kv_tokens // 4)
        self._kv_tokens = kv_tokens - kv_tokens // 4
        self._inbox: SimpleQueue[Generation | None] = SimpleQueue()  # None: close
        self._lock = Lock()  # guards _waiting
        self._waiting = 0  # submitted and not begun
        # The rest belongs to the thread.
        self._queue: deque[Generation] = deque()
        self._prefill: Prefill | None = None
        self._answers: list[Answer] = []  # in the order of the batch's rows
        self._batch: Batch = SharedBatch(model, layers) if model.can_share else SeparateBatch(model)
        self._cores = Cores()
        self._progress_at = 0.0
        self._progress_tokens = 0

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue the prompts of one request, all or none.

        Raises:
            Overloaded: too many wait already.
        """
        with self._lock:
            if self._waiting and self._waiting + len(generations) > self._max_queue:
                raise Overloaded(f"{self._waiting} requests wait already; try again later")
            self._waiting += len(generations)
            self._metrics.waiting.set(self._waiting)
        for generation in generations:
            self._inbox.put(generation)

    def close(self) -> None:
        """Fail what waits and runs, then end. Safe in a signal handler."""
        self._inbox.put(None)

    def run(self) -> None:
        with torch.inference_mode():
            while self._take_in():
                try:
                    self._turn()
                except torch.OutOfMemoryError:
                    logger.exception("event=out_of_memory answers=%d", len(self._answers))
                    self._fail_running(OutOfMemory("the device ran out of memory while answering"))
                except Exception:
                    logger.exception("event=turn_failed answers=%d", len(self._answers))
                    self._fail_running(ApiError("the model failed while answering; the log has the reason"))
        self._fail_running(Stopping("the server is stopping"))
        while self._queue:
            self._fail(self._begin(), Stopping("the server is stopping"))

    def _take_in(self) -> bool:
        """Move the inbox to the queue, waiting while there is nothing else to do; False to end."""
        idle = not (self._queue or self._prefill or self._answers)
        if idle:
            self._cores.rest()
        while True:
            try:
                generation = self._inbox.get(block=idle)
            except Empty:
                return True
            if generation is None:
                return False
            self._queue.append(generation)
            idle = False

    def _turn(self) -> None:
        torch.set_num_threads(self._cores.left())
        self._drop_abandoned()
        self._admit()
        if self._answers:
            self._step()
            self._report()
        if not self._answers:
            self._batch.clear()  # gives the buffers back
        self._update_gauges()

    def _drop_abandoned(self) -> None:
        """Let go of what nobody waits for any more, wherever it is."""
        for row in reversed(range(len(self._answers))):
            generation = self._answers[row].generation
            if generation.is_abandoned():
                self._leave(row)
                self._fail(generation, ClientGone("the client is gone"))
        for generation in [g for g in self._queue if g.is_abandoned()]:
            self._queue.remove(generation)
            self._count_begun()
            self._fail(generation, ClientGone("the client is gone"))
        if self._prefill and self._prefill.generation.is_abandoned():
            self._fail(self._prefill.generation, ClientGone("the client is gone"))
            self._prefill = None

    def _admit(self) -> None:
        """Prefill waiting prompts, oldest first, up to the budget of one turn."""
        budget = _PREFILL_TOKENS
        while budget > 0:
            if self._prefill is None:
                if not self._queue or not self._fits(self._queue[0]):
                    return
                self._prefill = Prefill(self._model, self._begin(), self._prefixes)
            prefill = self._prefill
            try:
                budget -= prefill.advance(budget)
            except torch.OutOfMemoryError:
                self._prefill = None
                self._fail(prefill.generation, OutOfMemory("the device has no room for this prompt"))
                return
            except (RuntimeError, ValueError, IndexError):  # this prompt's fault; the others go on
                logger.exception("event=prompt_failed id=%s", prefill.generation.id)
                self._prefill = None
                self._fail(
                    prefill.generation, ApiError("the model failed on this prompt; the log has the reason")
                )
                return
            if prefill.logits is not None:
                self._prefill = None
                self._join(prefill)

    def _join(self, prefill: Prefill) -> None:
        """Choose the first token of each answer; those that go on become rows."""
        assert prefill.logits is not None
        generation = prefill.generation
        answers = [Answer(generation, index, self._decode) for index in range(generation.choices)]
        self._metrics.prompt_tokens.inc(len(generation.prompt.ids))
        self._metrics.cached_tokens.inc(generation.cached_tokens)
        generation.first_token_at = time.monotonic()
        took_s = generation.first_token_at - generation.submitted_at
        self._metrics.first_token.observe(took_s)
        log.event("first_token", id=generation.id, ttft_s=took_s, cached_tokens=generation.cached_tokens)
        logits = prefill.logits.expand(len(answers), -1)
        choices = choose_tokens([answer.chooser for answer in answers], logits)
        going_on = []
        for answer, (token, logprob) in zip(answers, choices, strict=True):
            self._metrics.generated_tokens.inc()
            if not answer.accept(token, logprob, self._model.end_tokens):
                going_on.append(answer)
        if going_on:
            length = len(generation.prompt.ids)
            self._batch.add(prefill.cache, len(going_on), length, prefill.position_offset)
            self._answers += going_on

    def _step(self) -> None:
        logits = self._batch.step([answer.tokens[-1] for answer in self._answers])
        choices = choose_tokens([answer.chooser for answer in self._answers], logits)
        count = len(self._answers)
        self._metrics.batch.observe(count)
        self._metrics.generated_tokens.inc(count)
        self._progress_tokens += count
        ended = [
            row
            for row, (answer, choice) in enumerate(zip(self._answers, choices, strict=True))
            if answer.accept(*choice, self._model.end_tokens)
        ]
        for row in reversed(ended):
            self._remember(row)
            self._leave(row)

    def _remember(self, row: int) -> None:
        """Keep an ended answer's keys and values for the next turn of its chat."""
        answer = self._answers[row]
        prompt = answer.generation.prompt
        if not prompt.extras and (layers := self._batch.sequence(row)) is not None:
            self._prefixes.put(prompt.ids + answer.tokens[:-1], layers)

    def _leave(self, row: int) -> None:
        self._batch.remove(row)
        self._answers[row] = self._answers[-1]
        del self._answers[-1]

    def _fits(self, generation: Generation) -> bool:
        """True when the answers fit beside the running ones at full length; alone they may always try."""
        rows = len(self._answers) + generation.choices
        if not self._answers:
            return True
        longest = max(_full_length(answer.generation) for answer in self._answers)
        width = max(longest, _full_length(generation))
        return rows <= self._max_batch and rows * width <= self._kv_tokens

    def _begin(self) -> Generation:
        self._count_begun()
        return self._queue.popleft()

    def _count_begun(self) -> None:
        with self._lock:
            self._waiting -= 1
            self._metrics.waiting.set(self._waiting)

    def _fail(self, generation: Generation, error: ApiError) -> None:
        generation.outbox.put(Failed(error))

    def _fail_running(self, error: ApiError) -> None:
        """End every begun answer with an error and start from a clean slate."""
        running = {id(answer.generation): answer.generation for answer in self._answers}
        if self._prefill:
            running[id(self._prefill.generation)] = self._prefill.generation
        for generation in running.values():
            self._fail(generation, error)
        self._prefill = None
        self._answers = []
        self._batch.clear()
        self._prefixes.clear()

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._progress_at < _PROGRESS_S:
            return
        elapsed_s = now - self._progress_at
        if self._answers and elapsed_s < 2 * _PROGRESS_S:  # else it idled in between
            log.event(
                "progress",
                active=len(self._answers),
                waiting=len(self._queue),
                generated_tokens=sum(len(answer.tokens) for answer in self._answers),
                tps=self._progress_tokens / elapsed_s,
            )
        self._progress_at, self._progress_tokens = now, 0

    def _update_gauges(self) -> None:
        generations = {id(answer.generation) for answer in self._answers}
        self._metrics.processing.set(len(generations) + (self._prefill is not None))
        used = sum(len(a.generation.prompt.ids) + len(a.tokens) for a in self._answers)
        self._metrics.cache_usage.set(min(1.0, used / max(1, self._kv_tokens)))


def _full_length(generation: Generation) -> int:
    return len(generation.prompt.ids) + generation.sampling.max_tokens
