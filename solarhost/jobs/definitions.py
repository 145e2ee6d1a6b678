"""What a job is asked to be: steps of containers, and the rules for their names."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from solarhost.containers.engine import Gpus
from solarhost.jobs.errors import GpuUnavailable, InvalidJob

# Both become parts of paths and of container names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAME_RULE = "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, without '..'"
_VARIABLE = re.compile(r"[^=\0]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDefinition:
    name: str
    image: str
    command: tuple[str, ...] | None = None  # None: the image's own
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: Gpus | None = None
    is_preparation_step: bool = False  # may write to models and data


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    job_id: str
    name: str
    steps: tuple[StepDefinition, ...]
    retention_hours: float = 24.0
    min_free_disk_gb: float | None = None  # None: the host's MIN_FREE_DISK_GB
    base_model_uri: str | None = None
    training_data_uri: str | None = None
    training_config: Mapping[str, Any] | None = None
    model_selection: Mapping[str, Any] | None = None
    deployment: Mapping[str, Any] | None = None
    submission_id: str | None = None
    correlation_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For the job's record; `parse` takes it back."""
        return asdict(self)


def parse(data: Mapping[str, Any]) -> JobDefinition:
    """A definition from JSON whose types are right already (the API's schema saw to that).

    Raises:
        InvalidJob: naming the rule that it breaks.
    """
    _check_name("job_id", data["job_id"])
    if not data["steps"]:
        raise InvalidJob("a job needs at least one step", {"steps": ["is empty"]})
    steps = tuple(_parse_step(index, step) for index, step in enumerate(data["steps"]))
    names = [step.name for step in steps]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidJob(f"step names must differ: {', '.join(doubled)}", {"steps": ["names are doubled"]})
    return JobDefinition(**{**data, "steps": steps})


def _parse_step(index: int, data: Mapping[str, Any]) -> StepDefinition:
    at = f"steps.{index}"
    _check_name(f"{at}.name", data["name"])
    if not data["image"].strip():
        raise InvalidJob(f"step {data['name']} has no image", {f"{at}.image": ["is empty"]})
    for variable, value in (data.get("environment") or {}).items():
        if not _VARIABLE.fullmatch(variable) or "\0" in value:
            raise InvalidJob(
                f"step {data['name']}: {variable!r} can't be an environment variable",
                {f"{at}.environment": ["a name can't be empty or hold '=', nothing can hold a NUL"]},
            )
    return StepDefinition(
        name=data["name"],
        image=data["image"].strip(),
        command=_parse_command(at, data["name"], data.get("command")),
        environment=dict(data.get("environment") or {}),
        gpu=_parse_gpu(at, data["name"], data.get("gpu")),
        is_preparation_step=data.get("is_preparation_step", False),
    )


def _parse_command(at: str, step: str, command: str | list[str] | None) -> tuple[str, ...] | None:
    if command is None:
        return None
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:  # an open quote
        raise InvalidJob(f"step {step}: command: {error}", {f"{at}.command": [str(error)]}) from error
    if not words:
        raise InvalidJob(
            f"step {step}: command is empty; leave it out for the image's own",
            {f"{at}.command": ["is empty"]},
        )
    return tuple(words)


def _parse_gpu(at: str, step: str, gpu: Mapping[str, Any] | None) -> Gpus | None:
    if gpu is None:
        return None
    count, device_ids = gpu.get("count"), gpu.get("device_ids")
    if count is None and device_ids is None:
        raise InvalidJob(
            f"step {step}: gpu needs count or device_ids", {f"{at}.gpu": ["needs count or device_ids"]}
        )
    if device_ids is not None and (not all(device_ids) or len(set(device_ids)) != len(device_ids)):
        raise InvalidJob(
            f"step {step}: gpu.device_ids must be different and not empty",
            {f"{at}.gpu.device_ids": ["must be different and not empty"]},
        )
    if device_ids is not None and not device_ids:
        raise InvalidJob(f"step {step}: gpu.device_ids is empty", {f"{at}.gpu.device_ids": ["is empty"]})
    if count is not None and device_ids is None and count != -1 and count < 1:
        raise InvalidJob(
            f"step {step}: gpu.count is {count}; it must be 1 or more, or -1 for all",
            {f"{at}.gpu.count": ["must be 1 or more, or -1 for all"]},
        )
    return Gpus(count=count, device_ids=None if device_ids is None else tuple(device_ids))


def check_gpus(definition: JobDefinition, available_count: int) -> None:
    """Compare what the steps want with the host's inventory.

    Raises:
        GpuUnavailable: too many, or an index that does not exist. (UUIDs are Docker's to check.)
    """
    for step in definition.steps:
        if step.gpu is None:
            continue
        if step.gpu.device_ids is not None:
            ids = step.gpu.device_ids
            beyond = [one for one in ids if one.isdecimal() and int(one) >= available_count]
            if beyond or len(ids) > available_count:
                raise GpuUnavailable(step.name, list(ids), available_count)
        elif step.gpu.count is not None and max(step.gpu.count, 1) > available_count:
            raise GpuUnavailable(step.name, step.gpu.count, available_count)


def _check_name(field_name: str, value: str) -> None:
    if not _NAME.fullmatch(value) or ".." in value:
        raise InvalidJob(
            f"{field_name} {value[:140]!r} is not valid: {_NAME_RULE}", {field_name: [_NAME_RULE]}
        )
