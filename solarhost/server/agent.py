"""What happens in gunicorn's master and worker at a start, a signal and a stop.

The master binds, holds the lock and starts the worker anew when it dies; everything else lives in the
worker. A stop is carried out by the worker's `closer` thread, since a request that waits (a start, a
stream) would keep gunicorn's own way of stopping from ever getting there.
"""

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from flask import Flask
from gunicorn import sock

from solarhost.errors import SolarHostError
from solarhost.server.lock import AgentLock
from solarhost.server.notify import Notifier
from solarhost.server.pulse import Pulse
from solarhost.server.worker import WholeRequestWorker
from solarhost.settings import Settings

logger = logging.getLogger(__name__)

EXIT_CANNOT_START = 1  # the port or the configuration file is taken
EXIT_SETTINGS = 2
EXIT_BOOT_FAILED = 3  # gunicorn's own: the worker could not be set up, so it isn't tried again

CLOSE_EXTRA_S = 3.0  # beyond STOP_TIMEOUT_S, for everything that is not a model server
KILL_EXTRA_S = 4  # beyond STOP_TIMEOUT_S the master kills what is left
DETACH_S = 1.5


class Service(Protocol):
    """What is served: `app.extensions["solarhost"]`."""

    def start(self) -> None: ...

    def close(self, deadline: float, *, detach: bool = False) -> None:
        """End by the `time.monotonic()` deadline; with `detach`, model servers are left running."""


class Agent:
    """Hooks for gunicorn. One object, made in the master; the worker works on its inherited copy."""

    def __init__(self, settings: Settings, build: Callable[[Settings], Flask]):
        self._settings = settings
        self._build = build
        self._lock = AgentLock(settings.config_file)
        self._notifier = Notifier("", None)

    # In the master.

    def on_starting(self, arbiter: Any) -> None:
        """Refuse what can't work before anything is served; then bind."""
        if (
            arbiter.cfg.workers != 1
            or arbiter.cfg.preload_app
            or arbiter.worker_class is not WholeRequestWorker
        ):
            _refuse("all state is in one process: leave workers, worker_class and preload_app as configured")
        if arbiter.cfg.is_ssl:
            _refuse("TLS is not served: put a proxy in front")
        os.umask(os.umask(0) | stat.S_IWOTH)  # nobody else may change what we or our children make
        try:
            self._settings.config_file.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except SolarHostError as error:
            _refuse(str(error))
        except OSError as error:
            _refuse(f"{self._settings.config_file}: no lock can be made beside it: {error.strerror}")
        arbiter.LISTENERS = [_bind(address, arbiter) for address in arbiter.cfg.address]
        self._notifier = Notifier.from_environment()
        self._set_signals(arbiter)
        logger.info("listening on %s", ", ".join(str(listener) for listener in arbiter.LISTENERS))

    def _set_signals(self, arbiter: Any) -> None:
        """SIGINT stops as SIGTERM does; nothing may ever start a second worker beside the first."""
        stop_all = arbiter.handle_term

        def stop() -> None:
            self._notifier.stopping()
            stop_all()

        def refuse() -> None:
            logger.warning("reload and more workers are not supported; restart the agent instead")

        arbiter.handle_term = arbiter.handle_int = stop
        arbiter.handle_hup = arbiter.handle_ttin = arbiter.handle_ttou = arbiter.handle_usr2 = refuse

    # In the worker.

    def application(self) -> Flask:
        """Build the service; gunicorn asks for it in the worker."""
        try:
            return self._build(self._settings)
        except SolarHostError as error:
            _fail(error)

    def post_worker_init(self, worker: WholeRequestWorker) -> None:
        """Start the service, and the thread that will end it."""
        app: Flask = worker.wsgi
        pulse = Pulse(worker.sockets[0].getsockname(), self._notifier)
        threading.Thread(target=self._close, args=(worker, app, pulse), name="closer", daemon=True).start()
        service: Service = app.extensions["solarhost"]
        try:
            service.start()
        except SolarHostError as error:
            _fail(error)
        self._notifier.ready()
        pulse.start()
        logger.info("serving")

    def _close(self, worker: WholeRequestWorker, app: Flask, pulse: Pulse) -> None:
        """Wait for an order to stop and carry it out."""
        detach = worker.orders.get() == "detach"
        pulse.stop()
        limit_s = DETACH_S if detach else self._settings.stop_timeout_s + CLOSE_EXTRA_S
        deadline = time.monotonic() + limit_s
        logger.info("stopping%s", ", model servers are left running" if detach else "")
        try:
            app.extensions["solarhost.streams"].close()
            service: Service = app.extensions["solarhost"]
            service.close(deadline, detach=detach)
        except Exception:  # the process has to end all the same
            logger.exception("stopping failed")
        finally:
            worker.closed.set()

    def worker_exit(self, _arbiter: Any, worker: WholeRequestWorker) -> None:
        """End now: Python would wait for threads that nobody ends any more, and be killed for it."""
        if worker.pid != os.getpid():  # gunicorn calls this in the master, too, for a worker that is gone
            return
        left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        if left and worker.booted:
            logger.warning("threads that did not end: %s", ", ".join(left))
            logging.shutdown()
            os._exit(0)


def _bind(address: Any, arbiter: Any) -> Any:
    if not isinstance(address, tuple):
        _refuse(f"only a TCP address can be listened on, not {address}")
    kind = sock.TCP6Socket if ":" in address[0] else sock.TCPSocket
    try:
        return kind(address, arbiter.cfg, arbiter.log)
    except OSError as error:
        return _refuse(f"can't listen on {address[0]} port {address[1]}: {error.strerror}; see HOST and PORT")


def _fail(error: SolarHostError) -> NoReturn:
    logger.critical("the agent can't start: %s", error)
    sys.exit(EXIT_BOOT_FAILED)


def _refuse(reason: str) -> NoReturn:
    """One line for a person, and no traceback."""
    sys.stderr.write(f"solar-host: {reason}\n")
    sys.exit(EXIT_CANNOT_START)
