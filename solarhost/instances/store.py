"""Instance records, in memory and in `config.json`."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from solarhost.errors import InvalidRequest, StoreError
from solarhost.files import Damaged, read_json, set_aside, write_text
from solarhost.instances.record import Record
from solarhost.problems import Problems

logger = logging.getLogger(__name__)
VERSION = 1


class InstanceStore:
    """Records by id. Safe from any thread.

    What callers ask for goes to `config.json` and to a copy beside it, both forced to disk, so that
    whatever happens to the one that people edit, the instances that were acknowledged can still be
    read. What only reports a fact is written quickly, and forced to disk by the next `flush`. Entries
    that this version does not understand are kept and written back as they came.
    """

    def __init__(self, path: Path, problems: Problems, check_config: Callable[[Any], Mapping[str, Any]]):
        self._path = path
        self._copy = path.with_name(f".{path.name}.copy")
        self._problems = problems
        self._check_config = check_config  # raises InvalidRequest for what it does not know
        self._lock = Lock()  # guards everything below and the files
        self._records: dict[str, Record] = {}
        self._foreign: list[Any] = []
        self._texts: dict[str, tuple[Record, str]] = {}  # as they were last written, by id
        self._version = 0
        self._behind = False  # memory is newer than what is safely on disk
        self._unwritten: str | None = None  # why the newest note is in memory only
        self._gathering = False  # notes wait for the end of `together`

    def load(self) -> None:
        """Read the file, or what can be saved of it. Called once, before any other use.

        Raises:
            StoreError: it or its copy can't be read now, or is damaged and can't be set aside.
        """
        with self._lock:
            entries = self._read()
            for entry in entries:
                try:
                    record = Record.from_store(entry, self._check_config(entry["config"]))
                except (KeyError, TypeError, ValueError, AttributeError, InvalidRequest) as error:
                    self._foreign.append(entry)
                    self._problems.report(
                        f"config-entry-{len(self._foreign)}",
                        f"an entry of {self._path} is not understood and kept as it is: {error}",
                    )
                else:
                    self._records[record.id] = record
            self._version += 1

    def _read(self) -> list[Any]:
        """The entries of the file; of the copy when the file is gone, damaged or of another kind."""
        damage: Damaged | None = None
        try:
            if (entries := _entries(self._path)) is not None:
                return entries
        except Damaged as error:
            damage = error
        try:
            saved = _entries(self._copy)
        except Damaged as worse:
            wrong, aside_too = self._set_aside(damage), set_aside(self._copy)
            sentence = f"{wrong}. Its copy failed too: {worse}; kept as {aside_too}"
            self._problems.report("config-file", sentence)
            return []
        if saved is None and damage is None:  # the first start
            return []
        saved = saved or []
        sentence = f"{self._set_aside(damage)}. Its copy gave {len(saved)} instances"
        self._problems.report("config-file", sentence)
        self._behind = True
        return saved

    def _set_aside(self, damage: Damaged | None) -> str:
        """What is wrong with the file, and where it is kept now."""
        return f"{damage}; kept as {set_aside(self._path)}" if damage else f"{self._path} is gone"

    def get(self, instance_id: str) -> Record | None:
        return self._records.get(instance_id)  # the dict is replaced, never changed

    def all(self) -> list[Record]:
        return list(self._records.values())

    @property
    def version(self) -> int:
        """Grows with every change, so that what was derived from the records can be kept."""
        return self._version

    @property
    def unwritten(self) -> str | None:
        """Why no file has what was noted last; None when one has."""
        return self._unwritten

    def put(self, record: Record) -> None:
        """Write the files, then publish: a failed write changes neither.

        Raises:
            StoreError: the file could not be written.
        """
        with self._lock:
            self._write_safely(self._records | {record.id: record})

    def remove(self, instance_id: str) -> None:
        """Forget a record, in the files first.

        Raises:
            StoreError: the file could not be written.
        """
        with self._lock:
            self._write_safely({key: record for key, record in self._records.items() if key != instance_id})

    def note(self, record: Record) -> None:
        """Publish what the operating system says is so, even when it can't be written down now.

        A process that ended has ended, whether or not the disk is full; `flush` writes it later.
        """
        with self._lock:
            self._records, self._behind = self._records | {record.id: record}, True
            self._version += 1
            if not self._gathering:
                self._write_quickly()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what is noted inside once, at the end: for a boot; the next finds the same after a crash."""
        with self._lock:
            self._gathering = True
        try:
            yield
        finally:
            with self._lock:
                self._gathering = False
                if self._behind:
                    self._write_quickly()

    def flush(self) -> None:
        """Make safe what is not yet; called by a loop and at the end.

        Raises:
            StoreError: `config.json` can't be written.
        """
        with self._lock:
            if self._behind:
                self._write_safely(self._records)

    def _write_quickly(self) -> None:
        """The first file alone, not forced to disk. The caller holds the lock."""
        try:
            write_text(self._path, self._text(self._records), durable=False)
            self._unwritten = None
        except StoreError as error:
            self._unwritten = str(error)
            self._problems.report("config-file-write", f"{error}; states in it may be out of date")

    def _write_safely(self, records: dict[str, Record]) -> None:
        """Both files, forced to disk; the first one decides. The caller holds the lock."""
        text = self._text(records)
        write_text(self._path, text)
        self._unwritten = None
        if records is not self._records:
            self._records = records
            self._version += 1
        self._problems.clear("config-file-write")
        try:
            write_text(self._copy, text)
        except StoreError as error:
            self._behind = True
            self._problems.report("config-file-copy", str(error))
        else:
            self._behind = False
            self._problems.clear("config-file-copy")

    def _text(self, records: dict[str, Record]) -> str:
        """The file, laid out for people. A record is put into words once: it never changes."""
        known, self._texts = self._texts, {}
        for record in records.values():
            written, text = known.get(record.id, (None, ""))
            self._texts[record.id] = (record, text if written is record else _laid_out(record.to_store()))
        entries = [*(text for _, text in self._texts.values()), *map(_laid_out, self._foreign)]
        listed = ",\n".join(entries)
        return f'{{\n  "version": {VERSION},\n  "instances": [\n{listed}\n  ]\n}}'


def _laid_out(entry: Any) -> str:
    """An entry of the list as it stands in the file."""
    text = json.dumps(entry, indent=2, ensure_ascii=False)
    return "    " + text.replace("\n", "\n    ")  # inside strings they are escaped


def _entries(path: Path) -> list[Any] | None:
    """The list of instances in a file; None when there is none.

    Raises:
        Damaged: it holds something else.
        StoreError: it can't be read now.
    """
    data = read_json(path)
    if data is None:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("instances"), list):
        raise Damaged(path, "it does not hold an object with a list of instances")
    entries: list[Any] = data["instances"]
    return entries
