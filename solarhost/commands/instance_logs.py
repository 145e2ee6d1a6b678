"""Log lines of one instance: read at once, or followed for as long as one likes."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from solarhost.commands.failures import NoSuchThing
from solarhost.commands.following import followed
from solarhost.commands.moments import Since
from solarhost.commands.names import find_instance
from solarhost.commands.output import plain, print_json_line
from solarhost.commands.remote import Remote, path


@dataclass(frozen=True, slots=True)
class Lines:
    """Entries `{seq, timestamp, line}` or `{dropped, next_seq}`, of which those after a time are shown."""

    entries: Iterator[Mapping[str, Any]]
    after: datetime | None

    def print(self, *, as_json: bool, timestamps: bool) -> None:
        for entry in self.entries:
            if (
                self.after
                and "timestamp" in entry
                and datetime.fromisoformat(entry["timestamp"]) < self.after
            ):
                continue
            if as_json:
                print_json_line(entry)
            elif "dropped" in entry:
                click.echo(f"({entry['dropped']} lines came too fast and are only in the log file)", err=True)
            else:
                click.echo(
                    f"{entry['timestamp']} {plain(entry['line'])}" if timestamps else plain(entry["line"])
                )
            sys.stdout.flush()


def read(remote: Remote, name: str, since: Since | None, tail: int | None) -> Lines:
    """What there is now, also of an instance that was removed, by its whole id."""
    try:
        instance_id = find_instance(remote, name)["id"]
    except NoSuchThing as error:
        instance_id = name
        try:
            entries = remote.get(path("instances", name, "logs"), _query(since, tail))
        except NoSuchThing:
            raise error from None
    else:
        entries = remote.get(path("instances", instance_id, "logs"), _query(since, tail))
    return Lines(iter(entries), _time(since))


def follow(remote: Remote, name: str, since: Since | None, tail: int | None) -> Lines:
    """Each line as it is printed, until the instance is removed; a lost connection is made again."""
    instance_id = find_instance(remote, name)["id"]
    gone = f"the instance {name} is not there any more"
    entries = followed(remote, path("instances", instance_id, "logs"), _query(since, tail), gone)
    return Lines(entries, _time(since))


def _query(since: Since | None, tail: int | None) -> dict[str, int]:
    query = {"since": since} if isinstance(since, int) else {}
    return query if tail is None else {**query, "tail": tail}


def _time(since: Since | None) -> datetime | None:
    return since if isinstance(since, datetime) else None
