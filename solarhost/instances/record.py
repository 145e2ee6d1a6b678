"""One instance as data: what is stored, and how it is written down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from solarhost.instances.process import ProcessId
from solarhost.instances.status import Reason, Status
from solarhost.logs.names import is_id
from solarhost.shapes import check_fields

Priority = Literal["production", "staging", "ephemeral"]
BESIDE_CONFIG = ("priority", "managed_by", "intent_id", "gpu_ids", "vram_gb")  # that a caller gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Frozen, so a reader may keep one; a change makes a new one with `dataclasses.replace`."""

    id: str
    config: Mapping[str, Any]  # as stored, defaults filled in
    created_at: str
    status: Status = Status.STOPPED
    reason: Reason = Reason.NEVER_STARTED
    error_message: str | None = None
    priority: Priority = "production"
    managed_by: str | None = None
    intent_id: str | None = None
    gpu_ids: tuple[int | str, ...] | None = None  # as asked for
    vram_gb: float | None = None  # GiB per GPU

    run: int = 0  # counts starts of a child
    retry_count: int = 0
    started_at: str | None = None
    exit_code: int | None = None  # of the last child that ended; None when a signal did it
    signal: str | None = None
    adopted: bool = False

    # While a child may be alive:
    port: int | None = None
    process: ProcessId | None = None
    log_path: str | None = None
    context_size: int | None = None  # as the running server reported it

    @property
    def alias(self) -> str:
        return str(self.config["alias"])

    @property
    def backend_type(self) -> str:
        return str(self.config["backend_type"])

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def bind_host(self) -> str:
        return str(self.config.get("host") or "0.0.0.0")  # noqa: S104 - the documented default

    def to_store(self) -> dict[str, Any]:
        return asdict(self) | {"config": dict(self.config), "gpu_ids": self.gpu_ids and list(self.gpu_ids)}

    @classmethod
    def from_store(cls, entry: Mapping[str, Any], config: Mapping[str, Any]) -> "Record":
        """Read an entry of `config.json`; unknown keys are ignored, missing ones take their default.

        Raises:
            KeyError, TypeError, ValueError: it is not an instance.
        """
        known = {name: entry[name] for name in cls.__dataclass_fields__ if entry.get(name) is not None}
        process = known.get("process")
        gpu_ids = known.get("gpu_ids")
        record = cls(
            **known
            | {
                "created_at": entry["created_at"],
                "config": config,
                "status": Status(known.get("status", Status.STOPPED)),
                "reason": Reason(known.get("reason", Reason.NEVER_STARTED)),
                "process": ProcessId(**process) if process else None,
                "gpu_ids": tuple(gpu_ids) if gpu_ids else None,
            }
        )
        check_fields(record)
        if record.process:
            check_fields(record.process)
        if not is_id(record.id):
            raise ValueError("its id can't be one")
        return record


def source_to_resolve(config: Mapping[str, Any]) -> str | None:
    """The `model_source` of a config that names no path or hub id of its own."""
    if config.get("model") or config.get("model_id"):
        return None
    return config.get("model_source") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """What a caller gives to create an instance, checked."""

    config: Mapping[str, Any]
    priority: Priority = "production"
    managed_by: str | None = None
    intent_id: str | None = None
    gpu_ids: tuple[int | str, ...] | None = None
    vram_gb: float | None = None
