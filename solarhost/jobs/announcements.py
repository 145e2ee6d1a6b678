"""What the world hears of jobs: each event after its record, and again until solar-control has it."""

from collections.abc import Callable

from solarhost.events import JobEvent, Publish, StepLogLines
from solarhost.jobs.events import events_of
from solarhost.jobs.records import Job
from solarhost.jobs.steplog import stored_marker
from solarhost.jobs.workspace import Workspaces


class Announcements:
    """Publishes lifecycle events; keeps nothing.

    The records are the durable side of this: what an event says follows from the record, and `Job.told`
    counts those that solar-control has. So an agent that is killed between a change and its event, or
    before the event was sent, leaves it to the next one.
    """

    def __init__(self, workspaces: Workspaces, publish: Publish, host_id: Callable[[], str | None]):
        self._workspaces = workspaces
        self._publish = publish
        self._host_id = host_id

    def announce(self, job: Job, *, after: int) -> None:
        """Publish what has happened to a job beyond its first `after` events."""
        for event in self._events(job, after):
            self._publish(event)

    def resume(self, job: Job) -> None:
        """Publish what an earlier agent may not have brought to control, the ends of step logs with it."""
        for event in self._events(job, job.told):
            if event.name in ("step_completed", "step_failed"):
                log_file = self._workspaces.log_file(job.id, event.payload["step_name"])
                marker = stored_marker(log_file)
                if marker is not None:
                    self._publish(StepLogLines([marker]))
            self._publish(event)

    def _events(self, job: Job, after: int) -> list[JobEvent]:
        return events_of(job, str(self._workspaces.path(job.id)), self._host_id(), after=after)
