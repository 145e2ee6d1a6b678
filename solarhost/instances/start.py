"""One start of an instance, from its first attempt to readiness or failure."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from solarhost.backends.base import HEALTH_PATH, Backend, CannotStart, Command, Launch
from solarhost.errors import SolarHostError
from solarhost.instances.census import insist
from solarhost.instances.ending import Ending
from solarhost.instances.errors import StartFailed, StopFailed
from solarhost.instances.keeper import Keeper, Surroundings
from solarhost.instances.life import Life
from solarhost.instances.ports import base_url
from solarhost.instances.readiness import Limits, NotReady, wait_until_ready
from solarhost.instances.record import Record, source_to_resolve
from solarhost.instances.run import Run
from solarhost.instances.status import Reason, Status
from solarhost.shortages import refused

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt did not work, and whether another one may."""

    ending: Ending
    hopeless: bool


STOPPED = Failure(Ending(Reason.USER_STOP, "it was stopped while starting"), hopeless=True)


def prepare(backend: Backend, around: Surroundings, record: Record, port: int) -> Command:
    """The command of a start on `port`; nothing is started or written.

    Raises:
        CannotStart, SolarHostError: a program, a file or the pulled model is not there.
    """
    source = source_to_resolve(record.config)
    folder = around.resolve(source) if source else None
    keys = dict.fromkeys([record.config.get("api_key"), *around.settings.accepted_keys])
    launch = Launch(port=port, keys=tuple(key for key in keys if key), model_folder=folder)
    return backend.command(record.config, launch)


class Start:
    """Any number of callers wait for one start; its `start-<id>` thread carries it.

    `failure` and `ready` are guarded by the life's lock. A stop sets `cancelled` and then waits for
    `released`: only then does this hold nothing any more.
    """

    def __init__(
        self,
        life: Life,
        backend: Backend,
        keeper: Keeper,
        around: Surroundings,
        release: Callable[[], None],
        former_port: int | None = None,
    ):
        self.cancelled = Event()
        self.failure: StartFailed | None = None
        self.ready = False
        self._had_child = False
        self._life = life
        self._backend = backend
        self._keeper = keeper
        self._around = around
        self._release = release  # called under the life's lock, when the start is over
        self._former_port = former_port  # of a restart: clients know it

    @property
    def done(self) -> bool:
        return self.ready or self.failure is not None

    def carry(self, run: Run | None = None) -> None:
        """Body of the thread: attempts until one is ready, none can help, or a stop comes.

        Args:
            run: the child of an earlier agent that was still starting; it counts as the first attempt.
        """
        try:
            failure = self._try_repeatedly(run)
        except Exception as error:  # the callers must hear of it, whatever it was
            logger.exception("instance %s: start", self._life.id)
            insist(self._end_former)
            self._keeper.give_back()
            known = str(error) if isinstance(error, SolarHostError) else refused(error)
            words = known or "an unexpected error in the agent; its own log says more"
            failure = Failure(Ending(Reason.SPAWN_ERROR, words), hopeless=True)
        if failure is not None:
            self._fail(failure.ending)

    def _try_repeatedly(self, run: Run | None) -> Failure | None:
        """None once it is ready, else why the last attempt failed."""
        survivors = [] if run else self._end_former()
        if survivors:
            words = str(StopFailed(self._life.id, survivors))
            return Failure(Ending(Reason.STOP_FAILED, words), hopeless=True)
        for attempt in range(self._around.settings.max_retries + 1):
            if attempt:
                if self.cancelled.wait(RETRY_PAUSE_S):
                    return STOPPED
                self._count_retry(attempt)
            failure = self._await(run) if run else self._attempt()
            run = None
            if failure is None or failure.hopeless or self.cancelled.is_set():
                break
        return failure

    def _end_former(self) -> list[int]:
        """Pids of an earlier child that outlived its stop and still do after another try."""
        run = self._keeper.run
        if run is None or run.concluded:
            return []
        survivors = run.end(self._around.settings.stop_timeout_s)
        self._keeper.conclude(run, survivors)
        return survivors

    def _count_retry(self, attempt: int) -> None:
        with self._life.changed:
            self._life.note(retry_count=attempt)
        self._around.changed()

    def _attempt(self) -> Failure | None:
        """One try with a child of its own; None when it is ready."""
        record = self._life.record
        try:
            wanted = record.config.get("port")
            port = self._around.ports.take(record.id, record.bind_host, wanted, self._former_port)
            gpus = self._around.charges.admit(record.id, record.gpu_ids, record.vram_gb, self.cancelled)
            command = prepare(self._backend, self._around, record, port)
            run = self._keeper.spawn(self._backend, command, port, gpus, self.cancelled)
        except (CannotStart, SolarHostError) as error:
            self._keeper.give_back()
            return Failure(Ending(Reason.SPAWN_ERROR, str(error)), hopeless=True)
        if run is None:  # stopped before there was anything to stop
            self._keeper.give_back()
            return STOPPED
        self._around.changed()
        return self._await(run)

    def _await(self, run: Run) -> Failure | None:
        """Wait until `run` is ready; None then."""
        self._had_child = True
        settings = self._around.settings
        host = self._life.record.bind_host
        try:
            wait_until_ready(
                host,
                run.port,
                HEALTH_PATH,
                limits=Limits(settings.instance_ready_timeout_s, settings.instance_ready_max_s),
                session=run.session,
                members=run.members,
                changed=self._life.changed,
                ended=lambda: run.exited or self.cancelled.is_set(),
                hinted=lambda: run.activity.ready_hint,
            )
        except NotReady as error:  # it had its time, and would need as long again
            self._keeper.conclude(run, run.end(settings.stop_timeout_s))
            return Failure(Ending(Reason.READY_TIMEOUT, str(error)), hopeless=True)
        if not run.exited and not self.cancelled.is_set():
            key = {"Authorization": f"Bearer {settings.accepted_keys[0]}"}
            known = self._backend.probe(base_url(host, run.port), key)
            if self._succeed(run, known.context_size):
                return None
        if self.cancelled.is_set():
            return STOPPED
        with self._life.changed:
            self._life.wait_for(lambda: run.exit is not None, "exit")
        self._keeper.conclude(run, run.members())
        ending = self._keeper.explain(self._backend, run)
        final = run.exit is not None and run.exit.code in self._backend.final_exit_codes
        return Failure(ending, hopeless=final or ending.reason is Reason.GPU_OOM)

    def _succeed(self, run: Run, context_size: int | None) -> bool:
        """Make it running, unless it ended or was stopped at the last moment."""
        with self._life.changed:
            if self.cancelled.is_set() or run.exited:
                return False
            reason = Reason.ADOPTED if self._life.record.adopted else Reason.READY
            self._life.move(Status.RUNNING, reason=reason, retry_count=0, context_size=context_size)
            self.ready = True
            self._release()
        self._around.changed()
        return True

    def _fail(self, ending: Ending) -> None:
        """The start is over without a server; a stop that came in between decides the status."""
        tail = self._keeper.last_lines() if self._had_child else []
        with self._life.changed:
            record = self._life.record
            stopped = record.status is Status.STOPPING
            message = STOPPED.ending.message if stopped else ending.message
            self.failure = StartFailed(record.id, message, record.exit_code, tail)
            if not stopped:
                self._life.move(
                    Status.FAILED, reason=ending.reason, error_message=message, port=None, process=None
                )
            self._release()
            self._life.changed.notify_all()
        if not stopped:
            logger.warning("instance %s: start failed: %s", record.id, message)
        self._around.changed()
