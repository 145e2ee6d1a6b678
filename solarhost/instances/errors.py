"""What can go wrong with an instance, for whoever asked."""

from solarhost.errors import Conflict, NotFound, SolarHostError


class UnknownInstance(NotFound):
    def __init__(self, instance_id: str):
        super().__init__("Instance not found")
        self.instance_id = instance_id


class NotSettled(Conflict):
    """It must be stopped or failed for this."""

    status = 400

    def __init__(self, instance_id: str, now: str, wanted: str):
        super().__init__(f"instance {instance_id} is {now}: stop it before you {wanted} it")


class StartFailed(SolarHostError):
    """A start ended without a server that answers."""

    status = 500

    def __init__(self, instance_id: str, message: str, exit_code: int | None, log_tail: list[str]):
        super().__init__(message)
        self.instance_id, self.exit_code, self.log_tail = instance_id, exit_code, log_tail

    def body(self) -> dict[str, object]:
        return {
            "detail": str(self),
            "instance_id": self.instance_id,
            "exit_code": self.exit_code,
            "log_tail": self.log_tail,
        }


class StopFailed(SolarHostError):
    """Processes of an instance survived SIGKILL."""

    status = 500

    def __init__(self, instance_id: str, pids: list[int]):
        super().__init__(
            f"instance {instance_id}: processes {', '.join(map(str, pids))} did not end after SIGKILL; "
            "they may hang in a driver: see `ps -o pid,stat,wchan`, then stop it again"
        )
        self.instance_id, self.pids = instance_id, pids


class StillWorking(SolarHostError):
    """What was joined did not end in the time that it may take at most."""

    status = 500
