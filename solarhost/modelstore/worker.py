"""The process of one pull: `python -m solarhost.modelstore.hub_worker` or `…registry_worker`.

It reads one `Job` as a JSON line from standard input (keys come that way, so that no process list shows
them), asks the source, reports a plan, and downloads once it reads a second line. Standard input ending
means that the agent is gone: so is the worker, at once, with everything in its process group. Standard
output carries JSON lines, each one of these messages:

    {"phase": name}                                   a phase begins
    {"plan": {"bytes_total", "bytes_needed"}}         needed: on disk, beyond what is there already
    {"trouble": text}                                 why it waits before its next try; null: it goes on
    {"bytes_done": n}                                 of the selected files; at most every REPORT_S
    {"done": {"cached", "revision", "files": {name: {"size_bytes", "mtime_ns", "sha256"}}}}
    {"failed": {"code", "detail", "status"}}
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO

from solarhost.modelstore.download import CHUNK_BYTES, Download
from solarhost.modelstore.failures import Interrupted, PullError, could_not_write
from solarhost.modelstore.filters import matches
from solarhost.modelstore.job import Job
from solarhost.modelstore.remote import Checksum, Listing, Remote, RemoteFile, check_files
from solarhost.modelstore.staging import Staging, regular_size
from solarhost.modelstore.transport import Retries

REPORT_S = 0.2


class Worker:
    """Brings one model into its staging folder, complete and verified."""

    def __init__(self, job: Job, connect: Callable[[Job], Remote], out: TextIO, go: Event):
        self._job = job
        self._connect = connect
        self._out = out
        self._go = go
        self._place = Path(job.models_folder) / job.slug
        self._staging = Staging(Path(job.models_folder), job.slug)
        self._finished = 0  # bytes of the files that are done with
        self._reported_at = 0.0

    def run(self) -> None:
        """Report `done`. Raises PullError, or OSError for our own disk."""
        with self._staging.locked():
            if self._job.verify_present and self._is_intact():
                stamps = self._stamps(self._place, self._job.present)
                self._send(done={"cached": True, "revision": self._job.revision, "files": stamps})
                return
            self._enter("resolving")
            remote = self._connect(self._job)
            listing = self._listing(remote)
            wanted = self._selection(listing)
            reused = self._reusable(wanted)
            missing = [file for file in wanted if file.name not in reused]
            self._await_disk(wanted, missing)
            self._enter("downloading")
            digests = reused | self._download(remote, missing)
            self._enter("verifying")
            self._staging.lay_out(missing, reused)
            stamps = self._stamps(self._staging.tree, digests)
            self._send(done={"cached": not missing, "revision": listing.revision, "files": stamps})

    def _is_intact(self) -> bool:
        """Read the version on disk through."""
        self._enter("verifying")
        for name, digest in self._job.present.items():
            size = regular_size(self._place / name)
            if size is None or not self._hash(RemoteFile(name, size, f"sha256:{digest}")).matches:
                self._finished = 0
                return False
        return True

    def _listing(self, remote: Remote) -> Listing:
        retries = self._retries()
        while True:
            try:
                listing = remote.listing()
            except Interrupted as error:
                retries.wait(error)
            else:
                retries.progressed()
                return listing

    def _selection(self, listing: Listing) -> list[RemoteFile]:
        check_files(listing.files)
        job = self._job
        wanted = [file for file in listing.files if matches(file.name, job.filters)]
        if not wanted:
            raise PullError("not_found", f"none of its {len(listing.files)} files matches {job.filters}")
        if job.subpath and not any(file.name == job.subpath for file in wanted):
            raise PullError("not_found", f"it has no file {job.subpath!r}")
        if job.gguf and not any(file.name.lower().endswith(".gguf") for file in wanted):
            raise PullError("not_found", "it has no .gguf file, which llama.cpp needs")
        return wanted

    def _reusable(self, wanted: Sequence[RemoteFile]) -> dict[str, str]:
        """Files of the version on disk that are wanted as they are, with their sha256."""
        reused = {}
        for file in wanted:
            if regular_size(self._place / file.name) != file.size:
                continue
            known = self._job.present.get(file.name)
            if file.name in self._job.untouched and file.digest == f"sha256:{known}":
                reused[file.name] = str(known)
                self._finish(file)
            elif (checksum := self._hash(file)).matches:
                reused[file.name] = checksum.sha256
        return reused

    def _await_disk(self, wanted: Sequence[RemoteFile], missing: Sequence[RemoteFile]) -> None:
        self._staging.keep_parts(missing)
        apart = {file.digest: file for file in missing}.values()
        needed = sum(file.size - self._staging.here(file) for file in apart)
        self._send(plan={"bytes_total": sum(file.size for file in wanted), "bytes_needed": needed})
        self._go.wait()

    def _download(self, remote: Remote, missing: Sequence[RemoteFile]) -> dict[str, str]:
        by_digest: dict[str, str] = {}
        for file in missing:
            if file.digest not in by_digest:
                by_digest[file.digest] = Download(
                    remote,
                    file,
                    self._staging.part(file),
                    stall_s=self._job.stall_s,
                    retries=self._retries(),
                    on_bytes=self._report,
                ).run()
            self._finish(file)
        return {file.name: by_digest[file.digest] for file in missing}

    def _retries(self) -> Retries:
        return Retries(
            self._job.retries, self._job.retry_delay_s, lambda trouble: self._send(trouble=trouble)
        )

    def _hash(self, file: RemoteFile) -> Checksum:
        """Read a file of the version on disk; it counts as finished if it is right."""
        checksum = Checksum(file)
        done = 0
        descriptor = os.open(self._place / file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as content:
            while data := content.read(CHUNK_BYTES):
                checksum.update(data)
                done += len(data)
                self._report(done)
        if checksum.matches:
            self._finish(file)
        return checksum

    def _finish(self, file: RemoteFile) -> None:
        self._finished += file.size
        self._report(0)

    def _stamps(self, folder: Path, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        stamps = {}
        for name, digest in digests.items():
            status = (folder / name).lstat()
            stamps[name] = {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest}
        return stamps

    def _enter(self, phase: str) -> None:
        self._send(bytes_done=self._finished)
        self._send(phase=phase)

    def _report(self, of_this_file: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._send(bytes_done=self._finished + of_this_file)

    def _send(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def main(connect: Callable[[Job], Remote]) -> None:
    """Run the job on standard input; the exit status is 0 whenever its outcome was reported."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not garble the messages
    job = Job(**json.loads(_first_line()))
    go = Event()
    Thread(target=_follow_agent, args=(go,), name="agent", daemon=True).start()
    try:
        Worker(job, connect, out, go).run()
    except PullError as error:
        failure = error
    except OSError as error:
        failure = could_not_write(error)
    else:
        return
    failed = {"code": failure.code, "detail": str(failure), "status": failure.status}
    out.write(json.dumps({"failed": failed}) + "\n")
    out.flush()


def _first_line() -> bytes:
    """The agent writes the rest only after it read our plan, so nothing beyond the line gets lost."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)  # `sys.stdin` would lock at exit while `_follow_agent` waits on it
        if not data:
            raise SystemExit("the agent is gone")
        line += data
    return line


def _follow_agent(go: Event) -> None:
    """End with the agent, however it ends: its end of the pipe closes."""
    while os.read(0, 16):
        go.set()
    os.killpg(0, signal.SIGKILL)
