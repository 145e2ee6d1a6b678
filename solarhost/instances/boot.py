"""What an agent finds when it starts: children of the one before it."""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from signal import SIGKILL, SIGTERM

import psutil

from solarhost.instances.census import patiently
from solarhost.instances.process import Mark, ProcessId, command_digest, signal_all, start_mark, wait_all_gone
from solarhost.instances.record import Record

logger = logging.getLogger(__name__)

ORPHAN_GRACE_S = 5.0
ORPHAN_REAP_S = 5.0


def find_child(record: Record, marks: Mapping[int, Mark]) -> ProcessId | None:
    """The living child of a stored instance, None when there is none that is surely it.

    Args:
        marks: every living process that carries this host's mark.

    Raises:
        Unseen.
    """
    process = record.process
    if process is None:
        return _unnoted_child(record, marks)
    if not process.alive():
        return None
    mark = marks.get(process.pid)
    digest = mark.digest if mark else _digest_of(process.pid)
    return process if digest == process.digest else None


def _unnoted_child(record: Record, marks: Mapping[int, Mark]) -> ProcessId | None:
    """The agent died between the spawn and writing down the pid: the mark tells which one it is."""
    for pid, mark in marks.items():
        with suppress(OSError, psutil.NoSuchProcess):
            if (mark.instance_id, mark.run) == (record.id, record.run) and os.getsid(pid) == pid:
                return ProcessId(pid, start_mark(pid), mark.digest)
    return None


def _digest_of(pid: int) -> str | None:
    try:
        return command_digest(patiently(lambda: psutil.Process(pid).cmdline()))
    except psutil.Error:
        return None


def stop_orphans(orphans: Mapping[int, Mark]) -> None:
    """End processes that carry our mark and belong to no instance."""
    if not orphans:
        return
    for pid, mark in orphans.items():
        logger.warning(
            "process %d of instance %s (run %d) has no owner: stopping it", pid, mark.instance_id, mark.run
        )
    signal_all(orphans, SIGTERM)
    if not wait_all_gone(orphans, time.monotonic() + ORPHAN_GRACE_S):
        signal_all(orphans, SIGKILL)
        if not wait_all_gone(orphans, time.monotonic() + ORPHAN_REAP_S):
            logger.error("processes without an owner did not end: %s", sorted(orphans))
