"""Lines that an agent showed and could not note any more, because it was killed or the disk was full."""

import logging
from collections.abc import Sequence
from pathlib import Path

from solarhost import times
from solarhost.logs import disk
from solarhost.logs.channel import Channel
from solarhost.logs.ledger import Checkpoint
from solarhost.logs.names import LogFile, parse
from solarhost.logs.redaction import Redactor

logger = logging.getLogger(__name__)


def catch_up(channel: Channel, noted: Checkpoint, files: Sequence[LogFile], redactor: Redactor) -> None:
    """Give the lines after `noted` the numbers that they had, so that no later line gets one of them.

    Args:
        files: of runs that are over, oldest first. Those begun after the noted one were never noted.
    """
    last = parse(Path(noted.file))
    for file in files:
        if last is not None and file.started < last.started:
            continue
        start = noted.offset if file.path.name == noted.file else 0
        try:
            lines, size = disk.read_on(file.path, start, redactor)
        except OSError as error:
            logger.warning("%s: its last lines have no number: %s", file.path, error.strerror)
            continue
        if lines:
            channel.append(lines, times.now_iso(), size)
