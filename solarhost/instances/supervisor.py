"""One instance: what may be asked of it, from any thread."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from solarhost.backends.base import Backend, CannotStart, Usage
from solarhost.errors import SolarHostError, Unavailable
from solarhost.instances.census import Unseen, insist
from solarhost.instances.ending import Exit
from solarhost.instances.errors import NotSettled, StartFailed, StillWorking, StopFailed
from solarhost.instances.keeper import Keeper, Surroundings
from solarhost.instances.life import Life
from solarhost.instances.process import ProcessId
from solarhost.instances.record import Record
from solarhost.instances.run import REAP_S, Run
from solarhost.instances.start import Start, prepare
from solarhost.instances.states import StateCursor
from solarhost.instances.status import Reason, Status

logger = logging.getLogger(__name__)


class Supervisor:
    """One instance's server, from start to stop. Safe from any thread.

    A `start-<id>` thread carries a start through its attempts; each child has a `wait-<id>` thread
    that alone reaps it. Callers ask for a result and wait for it; what to do is decided here.
    """

    def __init__(self, instance_id: str, backend: Backend, around: Surroundings):
        self.id = instance_id
        self._around = around
        self._life = Life(instance_id, around.store, around.settings.stop_timeout_s + 4 * REAP_S)
        self._keeper = Keeper(self._life, around, self._on_end)
        # Guarded by the life's lock:
        self._backend = backend
        self._start: Start | None = None  # the one in progress, until it holds nothing any more
        self._closing = False

    @property
    def record(self) -> Record:
        """The record as it is now. Raises UnknownInstance once it was deleted."""
        return self._life.record

    @property
    def status(self) -> Status:
        """Its status; one that was deleted counts as stopped."""
        return self._life.status

    @property
    def backend(self) -> Backend:
        return self._backend

    @property
    def run(self) -> Run | None:
        """The latest child, alive or not."""
        return self._keeper.run

    @property
    def state(self) -> dict[str, Any]:
        """The runtime state, as in `GET /instances/{id}/state`."""
        return self._keeper.state

    def watch_state(self) -> StateCursor:
        return self._keeper.feed.watch(self.state)

    def on_usage(self, run: Run, usage: Usage) -> None:
        """A reading of the server's `/metrics`."""
        self._keeper.on_usage(run, usage)

    def start(
        self, only_if: Callable[[Record], bool] = lambda _: True, former_port: int | None = None
    ) -> Record:
        """Start it, or join the start in progress; return once it is ready.

        Args:
            only_if: looked at under the lock; when false, nothing is started.
            former_port: taken again if it is free.

        Raises:
            UnknownInstance, Unavailable: it was deleted, or the agent is stopping or can start no thread.
            StartFailed: it did not become ready, or was stopped meanwhile.
        """
        settings = self._around.settings
        with self._life.changed:
            self._life.wait_for(lambda: self.record.status is not Status.STOPPING, "stop")
            record = self.record
            if record.status is Status.RUNNING or not only_if(record):
                return record
            if self._closing:
                raise Unavailable("the agent is stopping; nothing is started any more")
            start = self._start or self._begin(former_port)
        self._around.changed()
        longest_s = (settings.instance_ready_max_s + settings.stop_timeout_s) * (1 + settings.max_retries)
        with self._life.changed:
            self._life.wait_for(lambda: start.done, "start", longest_s + settings.vram_release_timeout_s)
            if start.failure is not None:
                raise start.failure
            return self.record

    def stop(self, reason: Reason = Reason.USER_STOP) -> Record:
        """End its process and everything that it started; return when none of it is alive.

        Raises:
            UnknownInstance: it was deleted.
            StopFailed: something survived SIGKILL; the instance is `failed` then.
            Unseen: nobody can tell now whether something did; likewise.
        """
        with self._life.changed:
            self._life.wait_for(lambda: self.record.status is not Status.STOPPING, "stop")
            settled = self.record.status.settled and not self._lingers()
            if settled:
                self._settle(reason)
            else:
                self._life.move(Status.STOPPING)
                if self._start is not None:
                    self._start.cancelled.set()
            run = self._keeper.run
        self._around.changed()
        if not settled:
            self._finish_stop(run, reason)
        return self.record

    def restart(self) -> Record:
        """Stop it if it runs, then start it. Raises what those raise.

        Raises:
            StartFailed: also where it can be seen that no start would work; what runs is left running.
        """
        with self._life.changed:
            record, backend = self.record, self._backend
        if record.status is Status.RUNNING and record.port is not None:
            try:
                prepare(backend, self._around, record, record.port)
            except (CannotStart, SolarHostError) as error:
                raise StartFailed(
                    self.id, f"it was not restarted and still runs: {error}", None, []
                ) from error
        self.stop()
        return self.start(former_port=record.port)

    def update(self, backend: Backend, change: Callable[[Record], Record]) -> Record:
        """Replace its config or owner.

        Args:
            backend: of the new config.

        Raises:
            UnknownInstance, NotSettled: it was deleted, or a process may use the config.
            StoreError: it could not be written; nothing changed.
        """
        with self._life.changed:
            record = self.record
            if not record.status.settled:
                raise NotSettled(self.id, record.status, "change")
            self._around.store.put(change(record))
            self._backend = backend
            record = self.record
        self._around.changed()
        return record

    def delete(self) -> Record:
        """Forget it.

        Raises:
            UnknownInstance, NotSettled: it was deleted already, or a process may be alive.
            StoreError: it could not be written; nothing changed.
        """
        with self._life.changed:
            record = self.record
            if not record.status.settled or self._lingers():
                raise NotSettled(self.id, record.status, "delete")
            self._around.store.remove(self.id)
            self._life.changed.notify_all()  # whoever waits finds out that it is gone
        self._around.logs.forget(self.id)
        self._keeper.feed.close()
        self._around.changed()
        return record

    # -- boot and shutdown

    def adopt(self, process: ProcessId) -> None:
        """Take over a living child of an earlier agent; a start that was in progress goes on."""
        with self._life.changed:
            record = self.record
            run = self._keeper.adopt(self._backend, record, process)
            self._life.note(adopted=True, process=process)
            if record.status is Status.STARTING:
                self._carry(run)
            else:
                self._life.note(reason=Reason.ADOPTED)
        logger.info("instance %s: adopted process %d on port %d", self.id, process.pid, run.port)

    def settle_at_boot(self, reason: Reason) -> None:
        """Correct a stored status whose process is gone."""
        with self._life.changed:
            self._life.note(status=Status.STOPPED, reason=reason, process=None, port=None)

    def refuse_starts(self) -> None:
        """The agent is stopping: no start begins any more."""
        with self._life.changed:
            self._closing = True

    # -- inside

    def _begin(self, former_port: int | None) -> Start:
        """The caller holds the lock, which the start's thread waits for. Raises NoThread."""
        start = self._carry(None, former_port)
        self._life.move(Status.STARTING, error_message=None, retry_count=0, adopted=False)
        return start

    def _carry(self, run: Run | None, former_port: int | None = None) -> Start:
        """Let a thread of its own carry a start. The caller holds the lock. Raises NoThread."""
        start = Start(self._life, self._backend, self._keeper, self._around, self._release, former_port)
        self._around.threads.spawn(f"start-{self.id}", lambda: start.carry(run))
        self._start = start
        return start

    def _release(self) -> None:
        """The start is over. It holds the lock."""
        self._start = None

    def _lingers(self) -> bool:
        """Something of its latest child is still alive, or was when we looked last."""
        run = self._keeper.run
        return run is not None and not run.concluded

    def _settle(self, reason: Reason) -> None:
        """A stop of what has no process. The caller holds the lock."""
        record = self.record
        if record.status is Status.FAILED and reason is Reason.USER_STOP:
            self._life.move(Status.STOPPED, reason=reason)
        elif record.reason is Reason.AGENT_SHUTDOWN:
            self._life.note(reason=reason)  # or the next boot would start it again

    def _finish_stop(self, run: Run | None, reason: Reason) -> None:
        """End the child of an instance that is `stopping`, and say how that went."""
        survivors: Sequence[int] = ()
        try:
            if run is not None and not run.concluded:
                survivors = run.end(self._around.settings.stop_timeout_s)
            with self._life.changed:
                # The waiter reads the log to its end; the start gives back what it holds.
                self._life.wait_for(
                    lambda: (run is None or survivors or run.exit is not None) and self._start is None, "stop"
                )
        except (StillWorking, Unseen) as error:
            with self._life.changed:
                self._life.move(Status.FAILED, reason=Reason.STOP_FAILED, error_message=str(error))
            self._around.changed()
            raise
        if run is not None:
            self._keeper.conclude(run, survivors, failed=False)
        with self._life.changed:
            if survivors:
                failure = StopFailed(self.id, list(survivors))
                self._life.move(Status.FAILED, reason=Reason.STOP_FAILED, error_message=str(failure))
            else:
                self._life.move(Status.STOPPED, reason=reason, port=None, process=None, error_message=None)
        self._around.changed()
        if survivors:
            raise failure

    def _on_end(self, run: Run, end: Exit) -> None:
        """The waiter's news. A start or a stop in progress concludes its own run."""
        with self._life.changed:
            run.exit = end
            self._life.note(exit_code=end.code, signal=end.signal_name)
            unexpected = self.record.status is Status.RUNNING
        self._keeper.publish_state()
        if not unexpected:
            return
        survivors = insist(run.members)
        ending = self._keeper.explain(self._backend, run)
        self._keeper.conclude(run, survivors)
        with self._life.changed:
            if self.record.status is Status.RUNNING:  # no stop came meanwhile
                self._life.move(
                    Status.FAILED,
                    reason=ending.reason,
                    error_message=ending.message,
                    port=None,
                    process=None,
                )
        logger.warning("instance %s: %s", self.id, ending.message)
        self._around.changed()
