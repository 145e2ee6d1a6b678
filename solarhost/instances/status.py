"""The life of an instance: its states, the legal moves, and why it is where it is."""

from enum import StrEnum


class Status(StrEnum):
    """Only `Life.move` changes it.

    stopped --> starting --> running --> stopping --> stopped
                  |  |          |           |
                  |  +-> stopping           +--> failed (it would not die)
                  +----> failed <-+  failed --> starting, stopped
    """

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"

    @property
    def settled(self) -> bool:
        """No process belongs to it, as far as we know, and nothing is going on."""
        return self in (Status.STOPPED, Status.FAILED)


MOVES: dict[Status, frozenset[Status]] = {
    Status.STOPPED: frozenset({Status.STARTING}),
    Status.STARTING: frozenset({Status.RUNNING, Status.STOPPING, Status.FAILED}),
    Status.RUNNING: frozenset({Status.STOPPING, Status.FAILED}),
    Status.STOPPING: frozenset({Status.STOPPED, Status.FAILED}),
    Status.FAILED: frozenset({Status.STARTING, Status.STOPPED, Status.STOPPING}),
}


class Reason(StrEnum):
    """Why an instance has its status."""

    NEVER_STARTED = "never_started"
    USER_STOP = "user_stop"
    AGENT_SHUTDOWN = "agent_shutdown"  # the next boot starts it again
    READY = "ready"
    ADOPTED = "adopted"
    SPAWN_ERROR = "spawn_error"  # nothing ran: a file is missing, a port is taken, …
    EXITED = "exited"  # the process ended by itself
    CRASHED = "crashed"  # a signal ended it that nobody here sent
    HOST_OOM = "host_oom"
    GPU_OOM = "gpu_oom"
    READY_TIMEOUT = "ready_timeout"
    STOP_FAILED = "stop_failed"
