"""gunicorn around the app: one worker with request threads, the model loaded in it after the fork."""

import importlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.errors import HaltServer

from hf_server import log, memory
from hf_server.options import Options

_WORKER_DIED = 4
_TURN_S = 0.0005


class Server(BaseApplication):  # type: ignore[misc]
    """Runs until SIGTERM or until the worker dies; a dead model is not replaced unseen."""

    def __init__(self, options: Options):
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        options = self._options
        settings: dict[str, Any] = {
            "bind": f"[{options.host}]:{options.port}"
            if ":" in options.host
            else f"{options.host}:{options.port}",
            "proc_name": f"hf_server {options.alias}",
            "workers": 1,
            "worker_class": "hf_server.worker.PatientWorker",
            "worker_connections": options.connections,
            "keepalive": 75,
            "timeout": 0,  # loading may hold the interpreter for long; whoever runs us watches /health
            "graceful_timeout": 3,
            "preload_app": False,
            "control_socket_disable": True,
            "loglevel": "warning",
            "post_worker_init": post_worker_init,
            "child_exit": child_exit,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        # Here and not at the top: the master only watches the worker, and needs 14 MiB less without the app.
        service = importlib.import_module("hf_server.service").Service(self._options)
        return importlib.import_module("hf_server.app").create_app(service)


def post_worker_init(worker: Any) -> None:
    """In the worker, after the fork: begin to load, and end what runs as soon as SIGTERM comes."""
    log.configure()
    memory.share_arenas()
    # Many threads with little to do share the interpreter with one that has much: take turns faster,
    # so that `/health` and the model's next operation don't wait for a whole default turn of 5 ms.
    sys.setswitchinterval(_TURN_S)
    service = worker.wsgi.extensions["hf_server"]
    handle_exit: Callable[[int, FrameType | None], None] = worker.handle_exit

    def on_term(number: int, frame: FrameType | None) -> None:
        service.close()
        handle_exit(number, frame)

    signal.signal(signal.SIGTERM, on_term)
    service.start()


def child_exit(server: Any, worker: Any) -> None:
    """In the master: without its worker the server is over, unless it is stopping anyway."""
    if server.LISTENERS:
        log.failure("worker_died", pid=worker.pid, master=os.getpid())
        raise HaltServer("the model's worker died", _WORKER_DIED)
