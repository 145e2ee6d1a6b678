"""The child of an instance: spawned, followed, explained when it ends, and what it held given back."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGKILL
from subprocess import Popen
from threading import Event
from typing import Any

from solarhost.backends.base import Backend, CannotStart, Command, RuntimeState, Usage
from solarhost.events import InstanceState, Publish
from solarhost.instances.ending import Ending, Exit, explain
from solarhost.instances.life import Life
from solarhost.instances.ports import Ports
from solarhost.instances.process import (
    Mark,
    ProcessId,
    command_digest,
    signal_group,
    spawn,
    start_mark,
)
from solarhost.instances.record import Record
from solarhost.instances.run import Run
from solarhost.instances.states import StateFeed
from solarhost.instances.store import InstanceStore
from solarhost.logs.book import LogBook
from solarhost.resources.charges import InstanceCharges
from solarhost.settings import Settings
from solarhost.shortages import why
from solarhost.threads import NoThread, ThreadGroup
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

LOG_TAIL_LINES = 50


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all instances share."""

    settings: Settings
    store: InstanceStore
    logs: LogBook
    ports: Ports
    charges: InstanceCharges
    threads: ThreadGroup
    identity: str  # of this host, in the marks of its children
    marked: Callable[[], Mapping[int, Mark]]  # every living process with such a mark
    resolve: Callable[[str], Path]  # `model_source` to a folder or file
    publish: Publish
    changed: Callable[[], None]  # some record changed; called under no lock


class Keeper:
    """Keeps the latest child of one instance. Safe from any thread.

    Args:
        on_end: called by a child's `wait-<id>` thread once it has ended and its log has been read.
    """

    def __init__(self, life: Life, around: Surroundings, on_end: Callable[[Run, Exit], None]):
        self.feed = StateFeed(life.id)
        self.run: Run | None = None  # the latest child, alive or not; guarded by the life's lock
        self._life = life
        self._around = around
        self._on_end = on_end

    def spawn(
        self, backend: Backend, command: Command, port: int, gpus: Sequence[int | str], cancelled: Event
    ) -> Run | None:
        """Start a child, unless `cancelled` is set already; None then.

        Raises:
            CannotStart: the program can't be run.
            StoreError: no log file can be made.
            NoThread: nobody could have followed it.
        """
        environment = dict(command.environment)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        life = self._life
        with life.changed:
            if cancelled.is_set():
                return None
            number = life.record.run + 1
            log_path = self._around.logs.begin_run(life.id, life.record.alias, number)
            mark = Mark(self._around.identity, life.id, number, command_digest(command.argv))
            # Written before the spawn, so that a child is known even if we die right after it.
            life.note(run=number, port=port, log_path=str(log_path), process=None, context_size=None)
            try:
                child = spawn(command.argv, environment, mark, log_path)
            except OSError as error:
                raise CannotStart(f"{command.argv[0]} can't be run: {why(error)}") from error
            try:
                process = ProcessId(child.pid, start_mark(child.pid), mark.digest)
                life.note(process=process, started_at=now_iso())
                self._around.charges.spawned(life.id, child.pid)
                return self.attach(backend, process, child)
            except BaseException:  # nobody would wait for it
                signal_group(child.pid, SIGKILL)
                child.wait()
                raise

    def attach(self, backend: Backend, process: ProcessId, child: "Popen[bytes] | None") -> Run:
        """Follow a living child, spawned now or by an earlier agent. The caller holds the life's lock.

        Raises:
            NoThread: nobody follows it.
        """
        record = self._life.record
        assert record.port is not None and record.log_path is not None
        run = Run(
            instance_id=record.id,
            marked=self._around.marked,
            number=record.run,
            process=process,
            child=child,
            port=record.port,
            activity=backend.activity(),
        )
        own_key = record.config.get("api_key")
        run.tail = self._around.logs.follow(
            record.id,
            Path(record.log_path),
            record.run,
            partial(self._on_lines, run),
            secrets=[own_key] if own_key else [],
        )
        try:
            self._around.threads.spawn(f"wait-{record.id}", partial(run.wait, self._on_end))
        except NoThread:
            run.tail.finish()
            raise
        self.run = run
        return run

    def adopt(self, backend: Backend, record: Record, process: ProcessId) -> Run:
        """Follow a child of an earlier agent, and hold for it what it has. The caller holds the lock."""
        assert record.port is not None
        self._around.ports.keep(record.id, record.port)
        run = self.attach(backend, process, None)
        self._around.charges.adopt(record.id, process.pid, record.gpu_ids, record.vram_gb)
        return run

    def conclude(self, run: Run, survivors: Sequence[int], *, failed: bool = True) -> None:
        """Give back what a child held, once, when none of it is alive.

        Args:
            failed: it ended other than by a stop, so that its log is kept longer.
        """
        with self._life.changed:
            if run.concluded or survivors:
                return
            run.concluded = True
        self.give_back()
        self._around.logs.retire(run.instance_id, failed=failed)

    def give_back(self) -> None:
        """Let go of port and memory, also of a start that never had a child."""
        self._around.ports.give_back(self._life.id)
        self._around.charges.release(self._life.id)

    def explain(self, backend: Backend, run: Run) -> Ending:
        """Why a child ended that nobody stopped."""
        lines = self.last_lines()
        end = run.exit or Exit(None, None)
        return explain(end, lines, backend.explain_failure(lines, end.code), run.killed_for_memory())

    def last_lines(self) -> list[str]:
        """What its latest child said last."""
        return self._around.logs.last_lines(self._life.id, LOG_TAIL_LINES)

    @property
    def state(self) -> dict[str, Any]:
        """The runtime state, as in `GET /instances/{id}/state`."""
        run = self.run
        state = run.activity.state if run and not run.exited else RuntimeState()
        return {"instance_id": self._life.id, **state.as_json(), "timestamp": now_iso()}

    def publish_state(self) -> None:
        state = self.state
        self.feed.publish(state)
        self._around.publish(InstanceState(self._life.id, state["timestamp"], state))

    def on_usage(self, run: Run, usage: Usage) -> None:
        """A reading of `/metrics`, which overrules a log that was misread."""
        if run.activity.correct(usage):
            self.publish_state()

    def _on_lines(self, run: Run, lines: Sequence[str]) -> None:
        """New log lines of `run`, from its tail thread."""
        hinted = run.activity.ready_hint
        if run.feed(lines):
            self.publish_state()
        if run.activity.ready_hint and not hinted:
            with self._life.changed:
                self._life.changed.notify_all()
