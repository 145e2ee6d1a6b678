"""One step of a job: one container, from its creation to its exit code.

`StepRun.run` looks at what is there (no container, one that was created, runs, or has ended) and goes on
from that. So a fresh step, one whose agent was killed and one whose engine came back are the same code.
"""

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from solarhost.containers.engine import Container, Engine
from solarhost.containers.errors import CallCut, ContainerGone, EngineAway, EngineRefused
from solarhost.containers.output import Output
from solarhost.jobs.interrupts import Cancelled, Interrupts
from solarhost.jobs.preparation import Preparation, StepFailed
from solarhost.jobs.records import Job
from solarhost.jobs.steplog import LogReader, StepLog
from solarhost.threads import NoThread, begin

logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 5
DRAIN_S = 30.0  # without progress, then the output's reader is given up
DRAIN_CANCELLED_S = 1.0
ENGINE_POLL_S = 0.5
_SIGNALS = {one.value: one.name for one in signal.Signals}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a step's container ended."""

    exit_code: int
    oom_killed: bool

    @property
    def signal(self) -> int | None:
        """The signal that ended it: 128 and more is how both Docker and shells report one."""
        number = self.exit_code - 128
        return number if number in _SIGNALS else None


class StepRun:
    """Drives one step's container to its end, in the job's thread."""

    def __init__(
        self,
        job: Job,
        index: int,
        *,
        engine: Engine,
        preparation: Preparation,
        interrupts: Interrupts,
        log: StepLog,
        docker_grace_s: float,
        note_container: Callable[[str], None],
    ):
        self._job = job
        self._index = index
        self._engine = engine
        self._preparation = preparation
        self._interrupts = interrupts
        self._log = log
        self._docker_grace_s = docker_grace_s
        self._note_container = note_container  # into the job's record
        self._container_id = job.steps[index].container_id
        self._reader: LogReader | None = None
        self._follows = False  # the reader's output may end before the container's does
        self._lost_engine = False
        self.pid: int | None = None  # of the container's first process, while it runs

    def run(self) -> Ending:
        """Until the container has ended and its output is in the log.

        Raises:
            StepFailed: it could not be run, or nobody can tell how it ended.
            Cancelled: before there was a container that ran.
            Detached: the agent ends.
        """
        try:
            while True:
                try:
                    return self._drive()
                except EngineAway as away:
                    self._await_engine(away)
        finally:
            self.pid = None
            self._stop_reading()

    def remove_container(self) -> None:
        """Raises EngineAway or EngineRefused: it is still there."""
        container_id = self._container_id or self._find()
        if container_id is not None:
            self._engine.remove(container_id)

    def explain(self, ending: Ending) -> str:
        """Why it failed: what ended it, where that says something, then its last lines of stderr."""
        reasons = []
        if ending.oom_killed:
            reasons.append("killed for want of memory")
        elif ending.signal is not None:
            reasons.append(f"ended by signal {ending.signal} ({_SIGNALS[ending.signal]})")
        if self._lost_engine:
            reasons.append("the Docker engine went away while it ran")
        tail = self._log.stderr_tail()
        if not tail:
            reasons.append(f"exit code {ending.exit_code}, nothing on stderr")
        return "\n".join([", ".join(reasons), *tail] if reasons else tail)

    def _drive(self) -> Ending:
        container = self._look()
        if container is None:
            self._container_id = self._preparation.create(self._job, self._index, self._log, self._interrupts)
            self._note_container(self._container_id)
            container = self._engine.inspect(self._container_id)
        elif self._container_id is None:
            self._container_id = container.id
            self._note_container(container.id)
        if container.status == "created":
            self._interrupts.check()
            container = self._start(container.id)
        elif not self._log.completed and (self._reader is None or not self._reader.is_alive()):
            self._read_again(container)
        self.pid = container.pid
        ended = container if container.ended else self._await_end(container.id)
        self._drain()
        if self._follows:
            self._read_again(ended)
            self._drain()
        return Ending(ended.exit_code, ended.oom_killed)

    def _look(self) -> Container | None:
        """The step's container as it is now, None when there never was one."""
        try:
            # Without an id in the record there may be one: made by an agent that died before it noted it.
            container_id = self._container_id or self._find()
            return None if container_id is None else self._engine.inspect(container_id)
        except ContainerGone as gone:
            raise StepFailed("its container is gone: someone else removed it") from gone

    def _find(self) -> str | None:
        found = self._engine.find(self._preparation.step_labels(self._job, self._index))
        return found[0][0] if found else None

    def _start(self, container_id: str) -> Container:
        self._stop_reading()
        self._read(self._engine.attach(container_id))
        try:
            self._engine.start(container_id)
        except EngineRefused as refusal:
            self._engine.ping()  # one that is about to go refuses too, and then this raises EngineAway
            raise StepFailed(str(refusal)) from refusal
        return self._engine.inspect(container_id)

    def _await_end(self, container_id: str) -> Container:
        """Silence, however long, is fine here: the engine tells the end, and `inspect` confirms it."""
        call = self._engine.wait(container_id)
        with self._interrupts.cutting(call):
            try:
                while call.read():
                    pass
            except CallCut:
                self._interrupts.check_detached()
                self._engine.stop(container_id, CANCEL_GRACE_S)
        container = self._engine.inspect(container_id)
        if not container.ended:
            raise EngineAway(self._engine.address, "it ended the wait for a container that runs")
        return container

    def _await_engine(self, away: EngineAway) -> None:
        """Raises StepFailed: it did not return in time."""
        self._lost_engine = True
        logger.warning("job %s: %s", self._job.id, away)
        deadline = time.monotonic() + self._docker_grace_s
        while True:
            if self._interrupts.cancelled and self._container_id is None:
                raise Cancelled
            self._interrupts.pause(ENGINE_POLL_S)
            try:
                self._engine.ping()
            except EngineAway as still:
                if time.monotonic() >= deadline:
                    raise StepFailed(f"{still}; it was waited for {self._docker_grace_s:g} s") from still
            else:
                return

    def _read_again(self, container: Container) -> None:
        """Its output from the start; the log passes over what it has."""
        self._stop_reading()
        self._log.rewind()
        self._follows = not container.ended
        self._read(self._engine.stored_output(container.id, follow=self._follows))

    def _read(self, output: Output) -> None:
        step = self._job.steps[self._index]
        reader = LogReader(f"steplog-{self._job.id}-{step.name}", output, self._log)
        try:
            begin(reader)
        except NoThread:
            output.close()
            raise
        self._reader = reader

    def _drain(self) -> None:
        """The container has ended: let its reader come to the end of the output."""
        reader = self._reader
        if reader is None:
            return
        patience_s = DRAIN_CANCELLED_S if self._interrupts.cancelled else DRAIN_S
        seen = -1
        while reader.is_alive() and reader.batches != seen:
            seen = reader.batches
            reader.join(patience_s)
        if reader.is_alive():
            logger.warning("job %s: the end of a step's output did not come", self._job.id)

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cut()
            self._reader.join()
