"""A real Docker engine of the tests' own: its socket, data, bridge and processes are nobody else's."""

import io
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import docker
import pytest
import requests

from tests.agent import wait_until

IMAGE = "tools:1"  # busybox, with all its commands
STARTED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 60.0


class DockerEngine:
    """One `dockerd`; `start` again after `stop` or `kill` continues with the same data.

    Its `containerd` is a process beside it, as packages set it up, so that it outlives a crash. Needs root,
    and a kernel that allows namespaces, overlay mounts and bridges. With `live_restore` its containers
    outlive it, as they do where an administrator set that up. Further `runtimes` are runc under other names.
    """

    def __init__(self, *, live_restore: bool, runtimes: Sequence[str] = ()):
        self._folder = Path(tempfile.mkdtemp(prefix="jobs-docker-"))  # short: a socket's path has 108 bytes
        self._live_restore = live_restore
        self._runtimes = runtimes
        token = secrets.token_hex(3)
        self._bridge = f"shj{token}"
        self._subnet = f"10.{200 + int(token[:2], 16) % 50}.{int(token[2:4], 16)}.1/24"
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self.address = f"unix://{self._folder}/docker.sock"

    def prepare(self) -> None:
        """Make the bridge, start, load the image."""
        missing = [name for name in ("dockerd", "containerd", "busybox", "ip") if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            pytest.fail(
                "The tests of jobs run a real Docker engine: they need root"
                + (f", and {', '.join(missing)} (run `make setup`)" if missing else "")
            )
        _command("ip", "link", "add", self._bridge, "type", "bridge")
        _command("ip", "addr", "add", self._subnet, "dev", self._bridge)
        _command("ip", "link", "set", self._bridge, "up")
        self._start_containerd()
        self.start()
        self.client.import_image_from_data(_busybox_tar(), repository="tools", tag="1")

    @property
    def client(self) -> docker.APIClient:
        return docker.APIClient(self.address, version="auto", timeout=30)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = self._spawn(
            [
                "dockerd",
                f"--host={self.address}",
                f"--containerd={self._folder}/containerd.sock",
                f"--data-root={self._folder}/data",
                f"--exec-root={self._folder}/exec",
                f"--pidfile={self._folder}/docker.pid",
                f"--bridge={self._bridge}",
                "--iptables=false",
                "--ip-masq=false",
                f"--live-restore={str(self._live_restore).lower()}",
                "--shutdown-timeout=2",
                *(f"--add-runtime={name}=runc" for name in self._runtimes),
            ]
        )
        wait_until(self._answers_or_died, STARTED_WITHIN_S, "dockerd to answer")

    def stop(self) -> None:
        """As `systemctl stop docker` would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash would; its containers are left alone."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """It is there, and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all its threads

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def containers(self) -> list[str]:
        """Names of all containers, whatever their status."""
        return sorted(found["Names"][0].lstrip("/") for found in self.client.containers(all=True))

    def clear(self) -> list[str]:
        """Remove all containers, so that one test's failure is not the next one's; the names of those."""
        names = self.containers()
        for container in self.client.containers(all=True):
            with suppress(docker.errors.APIError):  # gone, or about to go
                self.client.remove_container(container["Id"], force=True)
        wait_until(lambda: not self.containers(), STOPPED_WITHIN_S, "the containers to go")
        return names

    def close(self) -> None:
        """End it and remove all that it made."""
        try:
            if self._process is None:
                return
            if self._process.poll() is not None:
                self.start()
            self.thaw()
            self.clear()
            self.stop()
        finally:
            if self._containerd is not None:
                self._containerd.terminate()
                self._containerd.wait(STOPPED_WITHIN_S)
            subprocess.run(["ip", "link", "del", self._bridge], check=False)
            release_mounts(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start_containerd(self) -> None:
        config = self._folder / "containerd.toml"
        config.write_text(
            f"""
version = 2
root = "{self._folder}/containerd"
state = "{self._folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{self._folder}/containerd.sock"
"""
        )
        self._containerd = self._spawn(["containerd", "--config", str(config)])
        wait_until((self._folder / "containerd.sock").exists, STARTED_WITHIN_S, "containerd's socket")

    def _spawn(self, words: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(STOPPED_WITHIN_S)
        (self._folder / "docker.pid").unlink(missing_ok=True)

    def _answers_or_died(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self._folder / "dockerd.log").read_text(errors="replace")
            reason = log.strip().splitlines()[-1] if log.strip() else f"exit code {self._process.returncode}"
            pytest.fail(
                f"The tests of jobs run a real Docker engine, and this machine does not allow it: {reason}"
            )
        with suppress(docker.errors.DockerException, requests.RequestException):
            return bool(self.client.ping())
        return False


def make_engine(*, live_restore: bool, runtimes: Sequence[str] = ()) -> Iterator[DockerEngine]:
    engine = DockerEngine(live_restore=live_restore, runtimes=runtimes)
    try:
        engine.prepare()
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """An engine whose containers outlive it; each test leaves it running, without containers."""
    yield from make_engine(live_restore=True)


@pytest.fixture
def plain_engine() -> Iterator[DockerEngine]:
    """An engine as Docker comes: its containers end with it."""
    yield from make_engine(live_restore=False)


@pytest.fixture
def toolkit_engine() -> Iterator[DockerEngine]:
    """An engine that was told of the NVIDIA Container Toolkit, which is not there."""
    yield from make_engine(live_restore=False, runtimes=["nvidia"])


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(
            "The tests of jobs run a real Docker engine, and this machine does not allow its network: "
            f"`{' '.join(words)}`: {done.stderr.strip()}"
        )


def _busybox_tar() -> bytes:
    """A root file system of one static program and a link for each of its commands."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        tar.add(Path(busybox).resolve(), "bin/busybox")
        for command in commands:
            if command == "busybox":
                continue
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        scratch = tarfile.TarInfo("tmp")
        scratch.type, scratch.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(scratch)
    return body.getvalue()


def release_mounts(folder: Path) -> None:
    """Unmount what engines left mounted below it, so that it can be removed."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    found = [line.split()[1] for line in lines]
    for mount in sorted((mount for mount in found if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)
