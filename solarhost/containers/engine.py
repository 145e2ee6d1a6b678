"""The Docker engine, in our words: typed values in, typed values and errors out."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import quote, urlencode

import docker
import requests
from docker import auth
from docker.types import DeviceRequest, LogConfig, Mount
from docker.utils import parse_repository_tag

from solarhost.containers.errors import ContainerGone, EngineAway, EngineRefused, NameTaken
from solarhost.containers.images import Credentials, auth_header
from solarhost.containers.longcall import LongCall
from solarhost.containers.output import Output
from solarhost.shortages import why

PING_S = 3
REMOVAL_S = 10.0
ANSWER_S = 60  # for the answer to a short call
# Beyond what a container can print: a limit of the engine's own would lose lines while the agent is away.
LOG_LIMIT = "1000g"
PIDS_LIMIT = 16_384  # processes and threads of a container, so that a runaway one leaves the machine some


@dataclass(frozen=True, slots=True)
class Bind:
    source: Path  # on this machine
    target: str  # in the container
    read_only: bool


@dataclass(frozen=True, slots=True)
class Gpus:
    """Which GPUs a container sees: those `device_ids`, else `count` of them (-1: all)."""

    count: int | None = None
    device_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    name: str
    image: str
    command: Sequence[str] | None  # None: the image's own
    environment: Mapping[str, str]
    binds: Sequence[Bind]
    user: str  # uid:gid
    labels: Mapping[str, str]
    gpus: Gpus | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """What the engine says of a container at one moment."""

    id: str
    status: str  # created, running, paused, restarting, removing, exited, dead
    exit_code: int
    oom_killed: bool
    error: str  # why it could not be started, else ""
    pid: int | None  # this machine's number of its first process, while it runs
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.status in ("exited", "dead")


class Engine:
    """One Docker engine behind a unix socket. Safe from any thread; it may come and go.

    Every call raises `EngineAway` when the engine does not answer.
    """

    def __init__(self, address: str):
        self.address = address
        self._lock = Lock()  # guards _client
        self._client: docker.APIClient | None = None

    def ping(self) -> None:
        with self._errors("answer"):
            client = self._connected()
            client.get(f"{client.base_url}/_ping", timeout=PING_S).raise_for_status()

    def runtimes(self) -> list[str]:
        """Names of the container runtimes, such as `runc` and `nvidia`."""
        with self._errors("list its runtimes"):
            return list(self._connected().info().get("Runtimes") or {})

    def has_image(self, image: str) -> bool:
        """Raises EngineRefused: `image` is not a valid reference."""
        try:
            with self._errors(f"look for image {image}"):
                self._connected().inspect_image(image)  # type: ignore[no-untyped-call]
        except ContainerGone:
            return False
        return True

    def pull(self, image: str, credentials: Credentials | None) -> LongCall:
        """Start a download; `pull_progress` takes the call, and tells how it went.

        Raises:
            EngineRefused: `image` is not a valid reference.
        """
        doing = f"pull image {image}"
        repository, tag = parse_repository_tag(image)
        with self._errors(doing):
            registry, _ = auth.resolve_repository_name(repository)
        headers = {}
        if credentials and credentials.registry == registry:
            headers["X-Registry-Auth"] = auth_header(credentials)
        query = urlencode({"fromImage": repository, "tag": tag or "latest"})
        return self._call("POST", f"/images/create?{query}", doing, headers)

    def create(self, spec: ContainerSpec) -> str:
        """The id of the new container, which does not run yet.

        Raises:
            NameTaken: its name is in use.
            EngineRefused: anything else that is wrong with it.
        """
        doing = f"create container {spec.name}"
        try:
            with self._errors(doing):
                client = self._connected()
                created = client.create_container(
                    spec.image,
                    command=None if spec.command is None else list(spec.command),
                    name=spec.name,
                    environment=dict(spec.environment),
                    user=spec.user,
                    labels=dict(spec.labels),
                    host_config=client.create_host_config(
                        mounts=[
                            Mount(bind.target, str(bind.source), type="bind", read_only=bind.read_only)
                            for bind in spec.binds
                        ],
                        network_mode="bridge",
                        pids_limit=PIDS_LIMIT,
                        security_opt=["no-new-privileges"],
                        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": LOG_LIMIT}),
                        device_requests=[_device_request(spec.gpus)] if spec.gpus else None,
                    ),
                )
        except EngineRefused as refusal:
            if "already in use by container" in refusal.why:
                raise NameTaken(refusal.doing, refusal.why) from refusal
            raise
        return str(created["Id"])

    def start(self, container_id: str) -> None:
        """Raises EngineRefused: its command can't be run, a mount is missing, …"""
        with self._errors(f"start container {container_id[:12]}"):
            self._connected().start(container_id)

    def inspect(self, container_id: str) -> Container:
        """Raises ContainerGone."""
        with self._errors(f"inspect container {container_id[:12]}"):
            found = self._connected().inspect_container(container_id)
        state = found["State"]
        return Container(
            id=found["Id"],
            status=state["Status"],
            exit_code=state["ExitCode"],
            oom_killed=state["OOMKilled"],
            error=state["Error"],
            pid=state["Pid"] or None,
            labels=found["Config"]["Labels"] or {},
        )

    def find(self, labels: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
        """Id and labels of each container, whatever its status, that carries all of `labels`."""
        with self._errors("list containers"):
            wanted = [f"{name}={value}" for name, value in labels.items()]
            found = self._connected().containers(all=True, filters={"label": wanted})
        return [(container["Id"], container["Labels"]) for container in found]

    def stop(self, container_id: str, grace_s: int) -> None:
        """SIGTERM, after `grace_s` SIGKILL; returns when it has ended. Fine when it had already.

        Raises:
            ContainerGone, EngineRefused: it could not be ended.
        """
        with self._errors(f"stop container {container_id[:12]}"):
            self._connected().stop(container_id, timeout=grace_s)

    def remove(self, container_id: str) -> None:
        """Remove a container and its anonymous volumes, killing it first if it runs. Fine if it is gone."""
        doing = f"remove container {container_id[:12]}"
        try:
            with self._errors(doing):
                self._connected().remove_container(container_id, v=True, force=True)
        except ContainerGone:
            return
        except EngineRefused as refusal:
            if "is already in progress" not in refusal.why:
                raise
            self._await_removal(container_id, doing)

    def wait(self, container_id: str) -> LongCall:
        """A call whose body ends when the container does."""
        return self._answered(
            "POST",
            f"/containers/{quote(container_id)}/wait?condition=not-running",
            f"wait for container {container_id[:12]}",
        )

    def attach(self, container_id: str) -> Output:
        """What it prints from now on, live; taken before `start`, nothing is missed."""
        call = self._answered(
            "POST",
            f"/containers/{quote(container_id)}/attach?stream=1&stdout=1&stderr=1",
            f"attach to container {container_id[:12]}",
        )
        return Output(call, stored=False)

    def stored_output(self, container_id: str, *, follow: bool) -> Output:
        """All that it has printed so far; with `follow` then what it prints, until about when it ends.

        Docker ends a `follow` sometimes before the last records; those are stored all the same.
        """
        call = self._answered(
            "GET",
            f"/containers/{quote(container_id)}/logs?follow={follow:d}&stdout=1&stderr=1&timestamps=1",
            f"read the output of container {container_id[:12]}",
        )
        return Output(call, stored=True)

    def _await_removal(self, container_id: str, doing: str) -> None:
        """Somebody else removes it: see that it goes."""
        deadline = time.monotonic() + REMOVAL_S
        while time.monotonic() < deadline:
            try:
                self.inspect(container_id)
            except ContainerGone:
                return
            time.sleep(0.05)
        raise EngineRefused(doing, f"it is being removed for {REMOVAL_S:g} s already")

    def _answered(self, method: str, path: str, doing: str) -> LongCall:
        call = self._call(method, path, doing)
        call.await_answer(ANSWER_S)
        return call

    def _call(self, method: str, path: str, doing: str, headers: Mapping[str, str] | None = None) -> LongCall:
        with self._errors(doing):
            version = self._connected().api_version
        return LongCall(self.address, method, f"/v{version}{path}", doing=doing, headers=headers)

    def _connected(self) -> docker.APIClient:
        """The client; made at first use, since it asks the engine for its version."""
        with self._lock:
            client = self._client
        if client is None:
            self._see_socket()
            try:
                client = docker.APIClient(self.address, version="auto", timeout=PING_S)
            except docker.errors.DockerException as error:
                raise EngineAway(self.address, _cause(error)) from error
            client.timeout = ANSWER_S
            with self._lock:
                self._client = client
        return client

    def _see_socket(self) -> None:
        """On a host without Docker, a look that costs nothing; the client is costly to make in vain."""
        scheme, _, path = self.address.partition("://")
        if scheme == "unix":
            try:
                Path(path).stat()
            except FileNotFoundError as error:
                raise EngineAway(self.address, str(error.strerror)) from error
            except OSError:
                return  # the client tells better what is wrong

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Docker's and requests' errors become ours."""
        try:
            yield
        except docker.errors.NotFound as error:
            raise ContainerGone(doing, _explanation(error)) from error
        except docker.errors.APIError as error:
            raise EngineRefused(doing, _explanation(error)) from error
        except docker.errors.DockerException as error:  # docker-py itself refused an argument
            raise EngineRefused(doing, str(error)) from error
        except requests.RequestException as error:
            raise EngineAway(self.address, _cause(error)) from error


def _device_request(gpus: Gpus) -> DeviceRequest:
    if gpus.device_ids is not None:
        return DeviceRequest(device_ids=list(gpus.device_ids), capabilities=[["gpu"]])
    return DeviceRequest(count=gpus.count or 0, capabilities=[["gpu"]])


def _explanation(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)


def _cause(error: Exception) -> str:
    """The innermost reason, since requests wraps it three times."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return why(cause) if isinstance(cause, OSError) else str(cause)
