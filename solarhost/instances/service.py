"""All instances of this host."""

import json
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from solarhost.backends.base import Generation, Usage
from solarhost.backends.registry import Backends
from solarhost.errors import InvalidRequest, NotFound, SolarHostError
from solarhost.events import InstancesChanged, Publish
from solarhost.instances.boot import find_child, stop_orphans
from solarhost.instances.errors import UnknownInstance
from solarhost.instances.keeper import Surroundings
from solarhost.instances.metrics import MetricsPoll
from solarhost.instances.ports import Ports
from solarhost.instances.process import host_identity, marked
from solarhost.instances.record import BESIDE_CONFIG, NewInstance, Record, source_to_resolve
from solarhost.instances.states import StateCursor
from solarhost.instances.status import Reason, Status
from solarhost.instances.store import InstanceStore
from solarhost.instances.supervisor import Supervisor
from solarhost.instances.view import as_json, flat
from solarhost.logs.book import LogBook
from solarhost.net import is_loopback
from solarhost.problems import Problems
from solarhost.resources.charges import InstanceCharges
from solarhost.settings import DEFAULT_API_KEY, Settings
from solarhost.threads import NoThread, PeriodicThread, Shared, ThreadGroup, join_by
from solarhost.times import now, now_iso

logger = logging.getLogger(__name__)

METRICS_INTERVAL_S = 2.0
FLUSH_INTERVAL_S = 1.0
SWEEP_INTERVAL_S = 300.0


class Instances:
    """Creates, finds and deletes instances; each one's life is its supervisor's. Safe from any thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        backends: Backends,
        logs: LogBook,
        charges: InstanceCharges,
        resolve: Callable[[str], Path],
        publish: Publish,
        problems: Problems,
    ):
        self._settings = settings
        self._backends = backends
        self._logs = logs
        self._publish = publish
        self._resolve = resolve
        self._store = InstanceStore(settings.config_file, problems, lambda given: backends.check(given)[0])
        self._threads = ThreadGroup()
        identity = host_identity(settings.config_file)
        self._around = Surroundings(
            settings=settings,
            store=self._store,
            logs=logs,
            ports=Ports(settings.start_port),
            charges=charges,
            threads=self._threads,
            identity=identity,
            marked=Shared(partial(marked, identity)),  # many stop at once when the agent does
            resolve=resolve,
            publish=publish,
            changed=self._announce,
        )
        self._lock = Lock()  # guards _supervisors
        self._supervisors: dict[str, Supervisor] = {}
        self._announcing = Lock()  # so that the last list sent is the newest
        self._listing: tuple[int, bytes] = (-1, b"")
        self._metrics = MetricsPoll(settings.accepted_keys[0])
        self.loops = [
            PeriodicThread("loop-metrics", METRICS_INTERVAL_S, lambda: self._metrics.poll(self._all())),
            PeriodicThread("loop-config", FLUSH_INTERVAL_S, self._store.flush),
            PeriodicThread("loop-log-notes", FLUSH_INTERVAL_S, logs.save_again),
            PeriodicThread(
                "loop-logs", SWEEP_INTERVAL_S, lambda: logs.sweep({r.id for r in self._store.all()})
            ),
        ]

    # -- boot and shutdown

    def start(self) -> None:
        """Read the store, adopt living children, end orphans, start the rest again in the background."""
        self._store.load()
        marks = self._around.marked()
        owned: set[tuple[str, int]] = set()
        waiting = []
        with self._store.together():
            for record in self._store.all():
                supervisor = Supervisor(record.id, self._backends.of(record.config), self._around)
                self._supervisors[record.id] = supervisor
                lived = record.status in (Status.STARTING, Status.RUNNING)
                if lived and (child := find_child(record, marks)) is not None:
                    supervisor.adopt(child)
                    owned.add((record.id, record.run))
                elif lived:
                    supervisor.settle_at_boot(Reason.AGENT_SHUTDOWN)
                    waiting.append(supervisor)
                elif record.status is Status.STOPPING:
                    supervisor.settle_at_boot(Reason.USER_STOP)
                elif record.status is Status.STOPPED and record.reason is Reason.AGENT_SHUTDOWN:
                    waiting.append(supervisor)
        # What an adopted child itself started belongs to it as well.
        stop_orphans({pid: m for pid, m in marks.items() if (m.instance_id, m.run) not in owned})
        if waiting:
            self._threads.spawn("autostart", partial(self._start_again, waiting))
        for loop in self.loops:
            loop.start()

    def _start_again(self, waiting: list[Supervisor]) -> None:
        """One after another, so that loading models don't fight for the disk."""
        for supervisor in waiting:
            try:
                supervisor.start(only_if=lambda record: record.reason is Reason.AGENT_SHUTDOWN)
            except SolarHostError as error:
                logger.warning("instance %s was not started again: %s", supervisor.id, error)

    def close(self, deadline: float, *, detach: bool = False) -> None:
        """End the children by one `time.monotonic()` deadline; `detach` or `ON_SHUTDOWN` leaves them."""
        for loop in self.loops:
            loop.stop()
        for supervisor in self._all():
            supervisor.refuse_starts()
        if not detach and self._settings.on_shutdown == "stop":
            stops = ThreadGroup()
            for supervisor in self._all():
                if not supervisor.status.settled:
                    stop = partial(self._stop_at_close, supervisor)
                    try:
                        stops.spawn(f"stop-{supervisor.id}", stop)
                    except NoThread:
                        stop()
            for thread in stops.join_by(deadline):
                logger.error("%s did not end in time", thread.name)
            self._threads.join_by(deadline)
        join_by(self.loops, deadline)
        self._metrics.close()
        try:
            self._store.flush()
        except SolarHostError as error:
            logger.error("%s", error)

    def _stop_at_close(self, supervisor: Supervisor) -> None:
        try:
            supervisor.stop(Reason.AGENT_SHUTDOWN)
        except SolarHostError as error:
            logger.error("%s", error)

    # -- reading

    def listing(self) -> bytes:
        """The body of `GET /instances`, made once for each change."""
        version, body = self._listing
        if version != self._store.version:
            version = self._store.version  # read first: a change meanwhile makes it old, never wrong
            body = json.dumps(self.rows()).encode()
            self._listing = (version, body)
        return body

    def rows(self) -> list[dict[str, Any]]:
        """All instances as the REST API shows them."""
        return [as_json(record, self._backends.of(record.config)) for record in self._store.all()]

    def flat(self) -> list[dict[str, Any]]:
        """All instances as solar-control hears of them."""
        return [flat(record, self._backends.of(record.config)) for record in self._store.all()]

    def get(self, instance_id: str) -> dict[str, Any]:
        """Raises UnknownInstance."""
        return self._render(self.find(instance_id).record)

    def exists(self, instance_id: str) -> bool:
        """True from its creation until its deletion is written."""
        return self._store.get(instance_id) is not None

    def unwritten(self) -> list[str]:
        """A sentence where what instances are doing now could not be written down."""
        why = self._store.unwritten
        return [f"{why}; an agent that is killed before that works would not know of this"] if why else []

    def find(self, instance_id: str) -> Supervisor:
        """Raises UnknownInstance."""
        supervisor = self._supervisors.get(instance_id)
        if supervisor is None:
            raise UnknownInstance(instance_id)
        return supervisor

    def state(self, instance_id: str) -> dict[str, Any]:
        """The runtime state. Raises UnknownInstance."""
        return self.find(instance_id).state

    def watch_state(self, instance_id: str) -> StateCursor:
        """A reader of its runtime states. Raises UnknownInstance."""
        return self.find(instance_id).watch_state()

    def last_generation(
        self, instance_id: str, after: datetime | None, within_s: float | None
    ) -> dict[str, Any]:
        """The newest finished request, of those that end after `after` and within the last `within_s`.

        Raises:
            UnknownInstance: there is no such instance.
            NotFound: it has finished none, or none in that window.
        """
        run = self.find(instance_id).run
        generations = list(run.activity.generations) if run else []
        earliest = after
        if within_s is not None:
            recent = now() - timedelta(seconds=within_s)
            earliest = max(recent, after) if after else recent
        for generation in reversed(generations):
            if _in_window(generation, earliest):
                return {"instance_id": instance_id, **generation.as_json()}
        raise NotFound("no generation has finished" + (" in that time" if earliest else ""))

    def usage(self, instance_id: str) -> dict[str, Any]:
        """The last reading of its `/metrics`; null fields before the first one. Raises UnknownInstance."""
        supervisor = self.find(instance_id)
        run = supervisor.run
        at, usage = run.usage if run and run.usage else (None, None)
        return {
            "instance_id": instance_id,
            "backend_type": supervisor.backend.backend_type,
            **(usage.as_json() if usage else supervisor.backend.usage("").as_json()),
            "timestamp": at.isoformat() if at else now_iso(),
        }

    def usage_or_none(self, instance_id: str) -> Usage | None:
        """The last reading of a living server; None while there is none."""
        supervisor = self._supervisors.get(instance_id)
        run = supervisor.run if supervisor else None
        return run.usage[1] if run and run.usage and not run.exited else None

    def counts(self) -> dict[Status, int]:
        """How many instances there are in each status."""
        counts = dict.fromkeys(Status, 0)
        for record in self._store.all():
            counts[record.status] += 1
        return counts

    def files_in_use(self) -> Collection[Path]:
        """Model files that a running, starting or stopping instance uses.

        Raises:
            StoreError: which they are can't be seen now.
        """
        files: set[Path] = set()
        for record in self._store.all():
            if not record.status.settled:
                try:
                    folder = self._model_folder(record.config)
                    files.update(self._backends.of(record.config).files(record.config, folder))
                except InvalidRequest as error:  # it is not there (any more)
                    logger.warning("instance %s: files of its model: %s", record.id, error)
        return files

    # -- changing

    def create(self, new: NewInstance) -> tuple[dict[str, Any], list[str]]:
        """A new instance and warnings about its config. It is not started.

        Raises:
            InvalidRequest: the config is not valid, or its `model_source` was not pulled.
            StoreError: it could not be written down, so it does not exist.
        """
        config, warnings = self._check(new.config)
        self._model_folder(config)
        record = Record(
            id=str(uuid.uuid4()),
            config=config,
            created_at=now_iso(),
            priority=new.priority,
            managed_by=new.managed_by,
            intent_id=new.intent_id,
            gpu_ids=new.gpu_ids,
            vram_gb=new.vram_gb,
        )
        supervisor = Supervisor(record.id, self._backends.of(config), self._around)
        self._store.put(record)
        with self._lock:
            self._supervisors = self._supervisors | {record.id: supervisor}
        self._announce()
        return self._render(record), [*warnings, *self._same_alias(record)]

    def update(self, instance_id: str, changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Apply the keys present: `config`, and those of `BESIDE_CONFIG`.

        Raises:
            UnknownInstance, NotSettled, InvalidRequest, StoreError: and nothing was changed.
        """
        supervisor = self.find(instance_id)
        fields = {key: changes[key] for key in BESIDE_CONFIG if key in changes}
        backend = supervisor.backend
        warnings: list[str] = []
        if "config" in changes:
            config, warnings = self._check(changes["config"])
            self._model_folder(config)
            fields["config"], backend = config, self._backends.of(config)
        record = supervisor.update(backend, lambda now: replace(now, **fields))
        if "config" in changes:
            warnings = [*warnings, *self._same_alias(record)]
        return self._render(record), warnings

    def _same_alias(self, record: Record) -> list[str]:
        """A warning where other instances have its alias too: replicas are meant to, others are not."""
        alike = (other.id for other in self._store.all() if other.alias == record.alias)
        others = [other for other in alike if other != record.id]
        if not others:
            return []
        more = f" and of {len(others) - 1} more" if len(others) > 1 else ""
        return [f"alias '{record.alias}' is also that of instance {others[0]}{more}"]

    def _check(self, given: object) -> tuple[dict[str, Any], list[str]]:
        """The config with its defaults, and warnings; see `Backends.check`.

        While the key is the one that everybody knows, an instance listens beyond this machine only if
        its config says so.
        """
        config, warnings = self._backends.check(given)
        if self._around.settings.api_key != DEFAULT_API_KEY or is_loopback(config["host"]):
            return config, warnings
        if isinstance(given, dict) and given.get("host"):
            what = "set API_KEY, or its host to 127.0.0.1"
            return config, [
                *warnings,
                f"it will listen on {config['host']} and take the default API_KEY: {what}",
            ]
        what = "for others to reach it, set API_KEY and its host"
        return {**config, "host": "127.0.0.1"}, [
            *warnings,
            f"it will listen on 127.0.0.1, since API_KEY is the default one: {what}",
        ]

    def delete(self, instance_id: str) -> dict[str, Any]:
        """Forget a stopped or failed instance; its log files stay for their time.

        Raises:
            UnknownInstance, NotSettled, StoreError: and nothing was changed.
        """
        record = self.find(instance_id).delete()
        with self._lock:
            self._supervisors = {key: s for key, s in self._supervisors.items() if key != instance_id}
        return self._render(record)

    # -- inside

    def _all(self) -> list[Supervisor]:
        return list(self._supervisors.values())

    def _render(self, record: Record) -> dict[str, Any]:
        return as_json(record, self._backends.of(record.config))

    def _model_folder(self, config: Mapping[str, Any]) -> Path | None:
        """Where its `model_source` is on disk; None when the config names a path or a hub's id itself."""
        source = source_to_resolve(config)
        return self._resolve(source) if source else None

    def _announce(self) -> None:
        with self._announcing:
            self._publish(InstancesChanged(self.flat()))


def _in_window(generation: Generation, earliest: datetime | None) -> bool:
    if earliest is None:
        return True
    return generation.finished_at is not None and generation.finished_at > earliest
