"""What can go wrong between this program and the Docker engine."""

from solarhost.errors import SolarHostError, Unavailable


class EngineAway(Unavailable):
    """The engine does not answer: stopped, restarting, or not installed."""

    def __init__(self, address: str, why: str):
        super().__init__(f"the Docker engine at {address} does not answer: {why}")
        self.address, self.why = address, why


class EngineRefused(SolarHostError):
    """The engine answered, and said no; `why` is its own explanation."""

    def __init__(self, doing: str, why: str):
        super().__init__(f"Docker could not {doing}: {why}")
        self.doing, self.why = doing, why


class ContainerGone(EngineRefused):
    """There is no such container (any more)."""


class NameTaken(EngineRefused):
    """Another container holds the wanted name."""


class CallCut(SolarHostError):
    """Another thread ended the call with `LongCall.cut`."""
