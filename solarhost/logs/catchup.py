"""Lines that an agent showed and could not note any more, because it was killed or the disk was full."""

import logging
from collections.abc import Sequence
from pathlib import Path

from solarhost import times
from solarhost.files import unread
from solarhost.logs import disk
from solarhost.logs.channel import Channel
from solarhost.logs.ledger import Checkpoint
from solarhost.logs.names import LogFile, parse
from solarhost.logs.redaction import Redactor
from solarhost.shortages import is_shortage

logger = logging.getLogger(__name__)


def catch_up(channel: Channel, noted: Checkpoint, files: Sequence[LogFile], redactor: Redactor) -> None:
    """Give the lines after `noted` the numbers that they had, so that no later line gets one of them.

    Args:
        files: of runs that are over, oldest first. Those begun after the noted one were never noted.

    Raises:
        StoreError: the system opens no file now; nothing was numbered. One that fails otherwise, as after
            an edit of its rights, is left out: no run begins before all are numbered.
    """
    last = parse(Path(noted.file))
    found = []
    for file in files:
        if last is not None and file.started < last.started:
            continue
        start = noted.offset if file.path.name == noted.file else 0
        try:
            found.append(disk.read_on(file.path, start, redactor))
        except OSError as error:
            if is_shortage(error):
                raise unread(file.path, error) from error
            logger.warning("%s: its last lines have no number: %s", file.path, error.strerror)
    for lines, size in found:
        if lines:
            channel.append(lines, times.now_iso(), size)
