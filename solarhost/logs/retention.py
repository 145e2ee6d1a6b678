"""Which log files may go."""

from collections.abc import Collection, Sequence

from solarhost.logs.names import LogFile

FILES_EACH = 20  # of one instance, however often it is started; the first failed run's comes on top


def expendable(files: Sequence[LogFile], *, oldest: float, needed: Collection[str]) -> list[LogFile]:
    """Files last written before `oldest` (unix time), and those beyond `FILES_EACH` of one instance.

    The newest of each (alias, id) stays whatever its age, so that every instance has a post-mortem, and
    so does each that is `needed` by name: one being read, or the first of a row of failures.
    """
    newest = {(file.alias, file.instance_id): file for file in sorted(files, key=_started)}
    counted: dict[str, int] = {}
    gone = []
    for file in sorted(files, key=_started, reverse=True):
        if file.path.name in needed or newest[file.alias, file.instance_id] is file:
            continue
        counted[file.instance_id] = counted.get(file.instance_id, 1) + 1
        if counted[file.instance_id] > FILES_EACH or _changed(file) < oldest:
            gone.append(file)
    return gone


def _started(file: LogFile) -> int:
    return file.started


def _changed(file: LogFile) -> float:
    try:
        return file.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
