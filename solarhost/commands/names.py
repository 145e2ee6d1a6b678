"""What an operator means by a name: an id, the unique beginning of one, or a unique alias."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from solarhost.commands.failures import BadInput, CommandFailed, NoSuchThing
from solarhost.commands.remote import Remote

LISTING = {"pull": "models pulls"}  # else the plural, and ls


def find_instance(remote: Remote, name: str) -> dict[str, Any]:
    """Raises NoSuchThing, or BadInput when it names several."""
    instances: list[dict[str, Any]] = remote.get("/instances")
    aliases = [str(instance["config"]["alias"]) for instance in instances]
    return dict(choose("instance", name, instances, "id", aliases))


def find_id(what: str, name: str, things: Sequence[Mapping[str, Any]], key: str) -> str:
    """The id in field `key` of the one thing that is meant. Raises as `find_instance`."""
    return str(choose(what, name, things, key, [])[key])


def choose(
    what: str, name: str, things: Sequence[Mapping[str, Any]], key: str, aliases: Sequence[str]
) -> Mapping[str, Any]:
    """An exact id comes first, then an alias (of the same order as `things`), then a beginning."""
    exact = [thing for thing in things if thing[key] == name]
    called = [thing for thing, alias in zip(things, aliases, strict=False) if alias == name]
    begun = [thing for thing in things if name and str(thing[key]).startswith(name)]
    found = exact or called or begun
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(
            f"{name!r} may be any of {len(found)} {what}s:",
            "name it by its id, or by as much of the id as no other has",
            tuple(_described(thing, key) for thing in found),
        )
    known = [*aliases, *(str(thing[key]) for thing in things)]
    raise NoSuchThing(f"there is no {what} {name!r}", _suggest(what, name, known))


@contextmanager
def called(name: str, instance_id: str) -> Iterator[None]:
    """Failures speak of the instance by the name that the operator knows."""
    try:
        yield
    except CommandFailed as error:
        sentence, hint = (text.replace(instance_id, name) for text in (error.message, error.hint))
        raise type(error)(sentence, hint, error.details) from error


def _described(thing: Mapping[str, Any], key: str) -> str:
    port = f"port {thing['port']}" if thing.get("port") else None
    return "  ".join(str(part) for part in (thing[key], thing.get("status"), port) if part)


def _suggest(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return (
        f"did you mean {near[0]!r}?" if near else f"`solar-host {LISTING.get(what, f'{what}s ls')}` lists all"
    )
