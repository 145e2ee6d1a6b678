"""What the world hears of jobs: each event after its record, and again until solar-control has it."""

from collections.abc import Callable

from solarhost.events import Publish
from solarhost.jobs.events import events_of
from solarhost.jobs.records import Job
from solarhost.jobs.workspace import Workspaces


class Announcements:
    """Publishes lifecycle events and the ends of step logs; keeps nothing.

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
        for event in events_of(job, str(self._workspaces.path(job.id)), self._host_id(), after=after):
            self._publish(event)
