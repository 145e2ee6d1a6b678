"""One instance: its state machine and the process behind it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import Popen
from threading import Condition, Event, Lock
from typing import Any

from solarhost.backends.base import HEALTH_PATH, Backend, CannotStart, Command, Launch, RuntimeState, Usage
from solarhost.errors import SolarHostError, Unavailable
from solarhost.events import InstanceState, Publish
from solarhost.instances.ending import Ending, Exit, explain
from solarhost.instances.errors import NotSettled, StartFailed, StillWorking, StopFailed, UnknownInstance
from solarhost.instances.ports import Ports, base_url
from solarhost.instances.process import Mark, ProcessId, command_digest, spawn, start_mark
from solarhost.instances.readiness import Limits, NotReady, wait_until_ready
from solarhost.instances.record import Record, source_to_resolve
from solarhost.instances.run import REAP_S, Run
from solarhost.instances.states import StateCursor, StateFeed
from solarhost.instances.status import MOVES, Reason, Status
from solarhost.instances.store import InstanceStore
from solarhost.logs.book import LogBook
from solarhost.resources.charges import InstanceCharges
from solarhost.settings import Settings
from solarhost.threads import ThreadGroup
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
LOG_TAIL_LINES = 50


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every supervisor shares."""

    settings: Settings
    store: InstanceStore
    logs: LogBook
    ports: Ports
    charges: InstanceCharges
    threads: ThreadGroup
    identity: str  # of this host, in the marks of its children
    resolve: Callable[[str], Path]  # `model_source` to a folder or file
    publish: Publish
    changed: Callable[[], None]  # some record changed; called under no lock


class Ticket:
    """One start, which any number of callers may wait for. Guarded by the supervisor's lock."""

    def __init__(self) -> None:
        self.cancelled = Event()  # a stop came in between
        self.failure: StartFailed | None = None
        self.ready = False

    @property
    def done(self) -> bool:
        return self.ready or self.failure is not None


class Supervisor:
    """One instance's server process, from spawn to exit. Safe from any thread.

    A `start-<id>` thread carries a start through its attempts; each child has a `wait-<id>` thread
    that alone reaps it. Whoever asks for something waits on `_changed` for the outcome. Locks are
    taken in this order: this instance's, then the store's or a log buffer's; under none of them is
    anything waited for but `_changed` itself.
    """

    def __init__(self, instance_id: str, backend: Backend, around: Surroundings):
        self.id = instance_id
        self.feed = StateFeed(instance_id)
        self._around = around
        self._backend = backend
        self._changed = Condition(Lock())  # guards the fields below and this instance's record
        self._ticket: Ticket | None = None  # of the start in progress, until its thread has let go
        self._run: Run | None = None  # the latest child
        self._closing = False

    # -- asked from outside

    @property
    def record(self) -> Record:
        """The record as it is now.

        Raises:
            UnknownInstance: it was deleted.
        """
        record = self._around.store.get(self.id)
        if record is None:
            raise UnknownInstance(self.id)
        return record

    @property
    def status(self) -> Status:
        """Its status; one that was deleted counts as stopped."""
        record = self._around.store.get(self.id)
        return record.status if record else Status.STOPPED

    @property
    def backend(self) -> Backend:
        return self._backend

    @property
    def run(self) -> Run | None:
        """The latest child, alive or not; for the metrics poll."""
        return self._run

    def start(self, only_if: Callable[[Record], bool] = lambda _: True) -> Record:
        """Start it, or join the start in progress; return once it is ready.

        Args:
            only_if: looked at under the lock; when false, nothing is started.

        Raises:
            UnknownInstance, Unavailable: it was deleted, or the agent is stopping.
            StartFailed: it did not become ready, or was stopped meanwhile.
        """
        settings = self._around.settings
        with self._changed:
            self._wait_for(lambda: self.record.status is not Status.STOPPING, "stop")
            record = self.record
            if record.status is Status.RUNNING or not only_if(record):
                return record
            if self._closing:
                raise Unavailable("the agent is stopping; nothing is started any more")
            if self._ticket is None:
                self._begin_start()
            ticket = self._ticket
            assert ticket is not None
        self._around.changed()
        longest = settings.instance_ready_max_s * (1 + settings.max_retries) + settings.stop_timeout_s
        with self._changed:
            self._wait_for(lambda: ticket.done, "start", longest)
            if ticket.failure is not None:
                raise ticket.failure
            return self.record

    def stop(self, reason: Reason = Reason.USER_STOP) -> Record:
        """End its process and everything that it started; return when none of it is alive.

        Raises:
            UnknownInstance: it was deleted.
            StopFailed: something survived SIGKILL; the instance is `failed` then.
        """
        with self._changed:
            self._wait_for(lambda: self.record.status is not Status.STOPPING, "stop")
            record = self.record
            run = self._run
            if record.status is Status.STOPPED:
                if record.reason is not reason and record.reason is Reason.AGENT_SHUTDOWN:
                    self._note(reason=reason)  # or the next boot would start it again
                return self.record
            if record.status is Status.FAILED and (run is None or run.concluded):
                if reason is Reason.USER_STOP:
                    self._move(Status.STOPPED, reason=reason)
                stopping = False
            else:
                self._move(Status.STOPPING)
                stopping = True
                if self._ticket is not None:
                    self._ticket.cancelled.set()
        self._around.changed()
        if stopping:
            self._finish_stop(run, reason)
        return self.record

    def restart(self) -> Record:
        """Stop it if it runs, then start it. Raises what those raise."""
        self.stop()
        return self.start()

    def update(self, backend: Backend, change: Callable[[Record], Record]) -> Record:
        """Replace its config or owner.

        Args:
            backend: of the new config.

        Raises:
            UnknownInstance, NotSettled: it was deleted, or a process may use the config.
            StoreError: it could not be written; nothing changed.
        """
        with self._changed:
            record = self.record
            if not record.status.settled:
                raise NotSettled(self.id, record.status, "change")
            self._around.store.put(change(record))
            self._backend = backend
        self._around.changed()
        return self.record

    def delete(self) -> Record:
        """Forget it.

        Raises:
            UnknownInstance, NotSettled: it was deleted already, or a process may be alive.
            StoreError: it could not be written; nothing changed.
        """
        with self._changed:
            record = self.record
            alive = self._run is not None and not self._run.concluded
            if not record.status.settled or alive:
                raise NotSettled(self.id, record.status, "delete")
            self._around.store.remove(self.id)
            self._changed.notify_all()  # whoever waits finds out that it is gone
        self._around.logs.forget(self.id)
        self.feed.close()
        self._around.changed()
        return record

    @property
    def state(self) -> dict[str, Any]:
        """The runtime state, as in `GET /instances/{id}/state`."""
        run = self._run
        state = run.activity.state if run and not run.exited else RuntimeState()
        return {"instance_id": self.id, **state.as_json(), "timestamp": now_iso()}

    def watch_state(self) -> StateCursor:
        return self.feed.watch(self.state)

    # -- boot and shutdown

    def adopt(self, process: ProcessId) -> None:
        """Take over a living child of an earlier agent; a start that was in progress goes on."""
        with self._changed:
            record = self.record
            assert record.port is not None and record.log_path is not None
            self._around.ports.keep(self.id, record.port)
            run = self._attach(record, process, None)
            self._around.charges.adopt(self.id, process.pid, record.gpu_ids, record.vram_gb)
            if record.status is Status.STARTING:
                self._ticket = Ticket()
                self._note(adopted=True, process=process)
                self._around.threads.spawn(f"start-{self.id}", partial(self._carry, self._ticket, run))
            else:
                self._note(status=Status.RUNNING, reason=Reason.ADOPTED, adopted=True, process=process)
        logger.info("instance %s: adopted process %d on port %d", self.id, process.pid, record.port)

    def settle_at_boot(self, status: Status, reason: Reason, message: str | None = None) -> None:
        """Correct a stored status whose process is gone."""
        with self._changed:
            self._note(status=status, reason=reason, error_message=message, process=None, port=None)

    def refuse_starts(self) -> None:
        """The agent is stopping: no start begins any more."""
        with self._changed:
            self._closing = True

    # -- inside

    def _begin_start(self) -> None:
        """The caller holds the lock."""
        self._ticket = ticket = Ticket()
        self._move(Status.STARTING, error_message=None, retry_count=0, adopted=False)
        self._around.threads.spawn(f"start-{self.id}", partial(self._carry, ticket))

    def _carry(self, ticket: Ticket, run: Run | None = None) -> None:
        """Body of the start thread: attempts until one is ready, none can help, or a stop comes.

        Args:
            run: the child of an earlier agent that was still starting; it counts as the first attempt.
        """
        try:
            failure = self._try_repeatedly(ticket, run)
        except Exception:  # the callers must hear of it, whatever it was
            logger.exception("instance %s: start", self.id)
            failure = Ending(Reason.SPAWN_ERROR, "an unexpected error in the agent; its own log says more")
            self._give_back()
        if failure is not None:
            self._end_start(ticket, failure)

    def _try_repeatedly(self, ticket: Ticket, run: Run | None) -> Ending | None:
        """None once it is ready, else why the last attempt failed."""
        survivors = self._end_former()
        if survivors:
            return Ending(Reason.STOP_FAILED, str(StopFailed(self.id, survivors)))
        for attempt in range(self._around.settings.max_retries + 1):
            if attempt:
                if ticket.cancelled.wait(RETRY_PAUSE_S):
                    break
                self._count_retry(attempt)
            failure, hopeless = self._await(ticket, run) if run else self._attempt(ticket)
            run = None
            if failure is None or hopeless or ticket.cancelled.is_set():
                break
        return failure

    def _end_former(self) -> list[int]:
        """Pids of an earlier child that outlived its stop and still do after another try."""
        run = self._run
        if run is None or run.concluded or not run.exited:
            return []
        survivors = run.end(0)
        self._conclude(run, survivors)
        return survivors

    def _count_retry(self, attempt: int) -> None:
        with self._changed:
            if self.record.status is Status.STARTING:
                self._note(retry_count=attempt)
        self._around.changed()

    def _attempt(self, ticket: Ticket) -> tuple[Ending | None, bool]:
        """One try: None when it is ready, else why not and whether trying again is hopeless."""
        record = self.record
        try:
            port = self._around.ports.take(self.id, record.bind_host, record.config.get("port"))
            gpus = self._around.charges.admit(self.id, record.gpu_ids, record.vram_gb, ticket.cancelled)
            command = self._command(record, port)
            run = self._spawn(ticket, record, command, port, gpus)
        except (CannotStart, SolarHostError) as error:
            self._give_back()
            return Ending(Reason.SPAWN_ERROR, str(error)), True
        if run is None:  # stopped before there was anything to stop
            self._give_back()
            return Ending(Reason.USER_STOP, "it was stopped while starting"), True
        self._around.changed()
        return self._await(ticket, run)

    def _command(self, record: Record, port: int) -> Command:
        source = source_to_resolve(record.config)
        folder = self._around.resolve(source) if source else None
        keys = dict.fromkeys([record.config.get("api_key"), *self._around.settings.accepted_keys])
        launch = Launch(port=port, keys=tuple(key for key in keys if key), model_folder=folder)
        return self._backend.command(record.config, launch)

    def _spawn(
        self, ticket: Ticket, record: Record, command: Command, port: int, gpus: Sequence[int | str] | None
    ) -> Run | None:
        """Start the child, unless a stop came first."""
        environment = dict(command.environment)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        with self._changed:
            if ticket.cancelled.is_set():
                return None
            number = record.run + 1
            log_path = self._around.logs.begin_run(self.id, record.alias, number)
            mark = Mark(self._around.identity, self.id, number, command_digest(command.argv))
            # Written before the spawn, so that a child is known even if we die right after it.
            self._note(run=number, port=port, log_path=str(log_path), process=None, context_size=None)
            try:
                child = spawn(command.argv, environment, mark, log_path)
            except OSError as error:
                raise CannotStart(f"{command.argv[0]} can't be run: {error.strerror or error}") from error
            process = ProcessId(child.pid, start_mark(child.pid), mark.digest)
            self._note(process=process, started_at=now_iso())
            self._around.charges.spawned(self.id, child.pid)
            return self._attach(self.record, process, child)

    def _attach(self, record: Record, process: ProcessId, child: "Popen[bytes] | None") -> Run:
        """Follow a living child. The caller holds the lock."""
        assert record.port is not None and record.log_path is not None
        run = Run(
            instance_id=self.id,
            host_identity=self._around.identity,
            number=record.run,
            process=process,
            child=child,
            port=record.port,
            activity=self._backend.activity(),
        )
        self._run = run
        own_key = record.config.get("api_key")
        run.tail = self._around.logs.follow(
            self.id,
            Path(record.log_path),
            record.run,
            partial(self._on_lines, run),
            secrets=[own_key] if own_key else [],
        )
        self._around.threads.spawn(f"wait-{self.id}", partial(run.wait, self._on_end))
        return run

    def _await(self, ticket: Ticket, run: Run) -> tuple[Ending | None, bool]:
        """Wait until `run` is ready; None then, else why not and whether trying again is hopeless."""
        settings = self._around.settings
        record = self.record
        try:
            wait_until_ready(
                record.bind_host,
                run.port,
                HEALTH_PATH,
                limits=Limits(settings.instance_ready_timeout_s, settings.instance_ready_max_s),
                members=run.members,
                changed=self._changed,
                ended=lambda: run.exited or ticket.cancelled.is_set(),
                hinted=lambda: run.activity.ready_hint,
            )
        except NotReady as error:
            survivors = run.end(settings.stop_timeout_s)
            self._conclude(run, survivors)
            return Ending(Reason.READY_TIMEOUT, str(error)), True
        if not run.exited and not ticket.cancelled.is_set():
            known = self._backend.probe(base_url(record.bind_host, run.port), self._headers())
            if self._become_ready(ticket, run, known.context_size):
                return None, False
        if ticket.cancelled.is_set():
            return Ending(Reason.USER_STOP, "it was stopped while starting"), True
        with self._changed:
            self._wait_for(lambda: run.exit is not None, "exit")
        self._conclude(run, run.members())
        ending = self._explain(run)
        return ending, ending.reason is Reason.GPU_OOM

    def _become_ready(self, ticket: Ticket, run: Run, context_size: int | None) -> bool:
        with self._changed:
            if ticket.cancelled.is_set() or run.exited:
                return False
            adopted = self.record.adopted
            self._move(
                Status.RUNNING,
                reason=Reason.ADOPTED if adopted else Reason.READY,
                retry_count=0,
                context_size=context_size,
            )
            ticket.ready = True
            self._ticket = None
        self._around.changed()
        return True

    def _end_start(self, ticket: Ticket, ending: Ending) -> None:
        """The start is over without a server; a stop that came in between decides the status."""
        tail = self._around.logs.last_lines(self.id, LOG_TAIL_LINES)
        with self._changed:
            stopped = self.record.status is Status.STOPPING
            message = "it was stopped while starting" if stopped else ending.message
            ticket.failure = StartFailed(self.id, message, self.record.exit_code, tail)
            if not stopped:
                self._move(
                    Status.FAILED, reason=ending.reason, error_message=ending.message, port=None, process=None
                )
            self._ticket = None
            self._changed.notify_all()
        if not stopped:
            logger.warning("instance %s: start failed: %s", self.id, ending.message)
        self._around.changed()

    def _finish_stop(self, run: Run | None, reason: Reason) -> None:
        """End the child of an instance that is `stopping`, and say how that went."""
        survivors = []
        if run is not None and not run.concluded:
            survivors = run.end(self._around.settings.stop_timeout_s)
        with self._changed:
            # The waiter reads the log to its end; the start thread gives back what it holds.
            self._wait_for(
                lambda: (run is None or survivors or run.exit is not None) and self._ticket is None, "stop"
            )
        if run is not None:
            self._conclude(run, survivors, failed=False)
        with self._changed:
            if survivors:
                failure = StopFailed(self.id, survivors)
                self._move(Status.FAILED, reason=Reason.STOP_FAILED, error_message=str(failure))
            else:
                self._move(Status.STOPPED, reason=reason, port=None, process=None, error_message=None)
        self._around.changed()
        if survivors:
            raise failure

    def _on_end(self, run: Run, end: Exit) -> None:
        """The waiter's news. A start or a stop in progress concludes its own run."""
        with self._changed:
            run.exit = end
            status = self.record.status
            if run is self._run:
                self._note(exit_code=end.code, signal=end.signal_name)
            unexpected = run is self._run and status is Status.RUNNING
            self._changed.notify_all()
        self.feed.publish(self.state)
        if not unexpected:
            return
        survivors = run.members()
        ending = self._explain(run)
        self._conclude(run, survivors)
        with self._changed:
            if self.record.status is Status.RUNNING and run is self._run:
                self._move(
                    Status.FAILED, reason=ending.reason, error_message=ending.message, port=None, process=None
                )
        logger.warning("instance %s: %s", self.id, ending.message)
        self._around.changed()

    def _explain(self, run: Run) -> Ending:
        lines = self._around.logs.last_lines(self.id, LOG_TAIL_LINES)
        end = run.exit or Exit(None, None)
        return explain(end, lines, self._backend.explain_failure(lines, end.code), run.killed_for_memory())

    def _conclude(self, run: Run, survivors: Sequence[int], *, failed: bool = True) -> None:
        """Give back what a child held, once, when none of it is alive.

        Args:
            failed: it ended other than by a stop, so that its log is kept longer.
        """
        with self._changed:
            if run.concluded or survivors:
                return
            run.concluded = True
        self._give_back()
        self._around.logs.retire(self.id, failed=failed)

    def _give_back(self) -> None:
        self._around.ports.give_back(self.id)
        self._around.charges.release(self.id)

    def _on_lines(self, run: Run, lines: Sequence[str]) -> None:
        """New log lines of `run`, from its tail thread."""
        hinted = run.activity.ready_hint
        if run.feed(lines):
            self._publish_state()
        if run.activity.ready_hint and not hinted:
            with self._changed:
                self._changed.notify_all()

    def on_usage(self, run: Run, usage: Usage) -> None:
        """A reading of `/metrics`, which overrules a log that was misread."""
        if run.activity.correct(usage):
            self._publish_state()

    def _publish_state(self) -> None:
        state = self.state
        self.feed.publish(state)
        self._around.publish(InstanceState(self.id, state["timestamp"], state))

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._around.settings.accepted_keys[0]}"}

    def _wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float | None = None) -> None:
        """Wait on `_changed`, bounded. The caller holds the lock.

        Raises:
            StillWorking: it took longer than it may.
        """
        if timeout_s is None:
            timeout_s = self._around.settings.stop_timeout_s + 4 * REAP_S
        if not self._changed.wait_for(condition, timeout_s):
            raise StillWorking(f"instance {self.id}: {what} did not end within {timeout_s:.0f} s")

    def _move(self, to: Status, **fields: Any) -> None:
        """The one place where a status changes. The caller holds the lock."""
        now = self.record.status
        if to not in MOVES[now]:
            raise AssertionError(f"instance {self.id}: {now} cannot become {to}")
        self._note(status=to, **fields)
        logger.info("instance %s: %s -> %s", self.id, now, to)

    def _note(self, **fields: Any) -> None:
        """Write a fact into the record and wake whoever waits. The caller holds the lock."""
        self._around.store.note(replace(self.record, **fields))
        self._changed.notify_all()

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no start and no child is in progress; for shutdown and tests."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ticket is None, max(0.0, deadline - time.monotonic()))
