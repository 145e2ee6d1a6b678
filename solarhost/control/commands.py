"""Commands that solar-control sends over the link, for hosts that it can't call."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from solarhost.errors import InvalidRequest

logger = logging.getLogger(__name__)

Answer = tuple[int, object]  # status and body
Dispatch = Callable[[str, str, dict[str, Any] | None], Answer]

MAX_RUNNING = 16
MAX_ANSWERS = 200  # remembered, for commands that control repeats


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    has_body: bool = False


ROUTES = {
    "create": Route("POST", "/instances", has_body=True),
    "list": Route("GET", "/instances"),
    "get": Route("GET", "/instances/{id}"),
    "update": Route("PUT", "/instances/{id}", has_body=True),
    "delete": Route("DELETE", "/instances/{id}"),
    "start": Route("POST", "/instances/{id}/start"),
    "stop": Route("POST", "/instances/{id}/stop"),
    "restart": Route("POST", "/instances/{id}/restart"),
    "logs": Route("GET", "/instances/{id}/logs"),
}


class Commands:
    """Runs each command as the REST call of its name. Safe from any thread.

    A command whose answer was lost with the connection is sent again under the same id; it is not run
    twice but gets (or waits for) the answer of the first.
    """

    def __init__(self, dispatch: Dispatch, *, enabled: bool):
        self._dispatch = dispatch
        self._enabled = enabled
        self._free = threading.BoundedSemaphore(MAX_RUNNING)
        self._lock = threading.Lock()  # guards _answers
        self._answers: OrderedDict[str, Future[Answer]] = OrderedDict()

    def answer(self, command: object) -> dict[str, Any]:
        """Run one command, in the calling thread; returns the acknowledgement `{id, ok, status, body}`."""
        if not isinstance(command, Mapping):
            return _acknowledgement(None, 422, _detail("a command is an object"))
        command_id = command.get("id")
        threading.current_thread().name = f"command-{command_id}"
        if not self._enabled:
            return _acknowledgement(
                command_id, 403, _detail("commands over the link are turned off (COMMANDS_OVER_LINK)")
            )
        if not isinstance(command_id, str | int):
            return _acknowledgement(command_id, 422, _detail("a command needs an id"))
        return _acknowledgement(command_id, *self._once(str(command_id), command))

    def _once(self, command_id: str, command: Mapping[str, Any]) -> Answer:
        with self._lock:
            first = self._answers.get(command_id)
            if first is None:
                if not self._free.acquire(blocking=False):
                    return 503, _detail(f"{MAX_RUNNING} commands are running, try again later")
                mine = self._answers[command_id] = Future()
                while len(self._answers) > MAX_ANSWERS:
                    self._answers.popitem(last=False)
        if first is not None:
            return first.result()
        try:
            mine.set_result(self._run(command))
        finally:
            self._free.release()
        return mine.result()

    def _run(self, command: Mapping[str, Any]) -> Answer:
        try:
            return self._dispatch(*rest_call(command))
        except InvalidRequest as error:
            return 422, _detail(str(error))
        except Exception:  # the end of this thread's work: control gets an answer whatever happens
            logger.exception("command %s failed", command.get("action"))
            return 500, _detail("the command failed, see the host's log")


def rest_call(command: Mapping[str, Any]) -> tuple[str, str, dict[str, Any] | None]:
    """The REST call that a command stands for: method, path with query, body.

    Raises:
        InvalidRequest: there is none.
    """
    action, instance_id, params = (command.get(key) for key in ("action", "instance_id", "params"))
    route = ROUTES.get(action) if isinstance(action, str) else None
    if route is None:
        raise InvalidRequest(f"unknown action {action!r}, there are {', '.join(ROUTES)}")
    params = {} if params is None else params
    if not isinstance(params, dict):
        raise InvalidRequest("params is not an object")
    path = route.path
    if "{id}" in path:
        if not isinstance(instance_id, str) or not instance_id:
            raise InvalidRequest(f"{action} needs an instance_id")
        path = path.format(id=quote(instance_id, safe=""))
    if route.has_body:
        return route.method, path, params
    if params and route.method == "GET":
        path += "?" + urlencode({key: value for key, value in params.items() if value is not None})
    return route.method, path, None


def _acknowledgement(command_id: object, status: int, body: object) -> dict[str, Any]:
    return {"id": command_id, "ok": 200 <= status < 300, "status": status, "body": body}


def _detail(text: str) -> dict[str, str]:
    return {"detail": text}
