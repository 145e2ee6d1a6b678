"""gunicorn's configuration, made from the settings."""

from typing import Any

from solarhost.server.agent import KILL_EXTRA_S, Agent
from solarhost.server.logs import ACCESS_FORMAT, AccessIfAsked, logging_config
from solarhost.settings import Settings

MAX_CONNECTIONS = 512
BACKLOG = 1024
HEARTBEAT_TIMEOUT_S = 120  # a worker whose poller hangs that long is replaced; the new one adopts


def gunicorn_options(settings: Settings, agent: Agent) -> dict[str, Any]:
    """Names and values as in gunicorn's documentation of its settings."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return {
        "bind": f"{host}:{settings.port}",
        "backlog": BACKLOG,
        "workers": 1,  # all state is in one process
        "worker_class": "solarhost.server.worker.WholeRequestWorker",
        "threads": settings.threads,
        "worker_connections": MAX_CONNECTIONS,
        "timeout": HEARTBEAT_TIMEOUT_S,
        "graceful_timeout": int(settings.stop_timeout_s) + KILL_EXTRA_S,
        "keepalive": 1,  # on; the worker has its own limits
        "preload_app": False,
        "control_socket_disable": True,
        "sendfile": False,  # would write past the buffer that keeps slow readers off the threads
        "proc_name": "solar-host",
        "accesslog": "-" if settings.access_log else None,
        "access_log_format": ACCESS_FORMAT,
        "logger_class": AccessIfAsked,
        "logconfig_dict": logging_config(settings.log_level, settings.secrets),
        "on_starting": agent.on_starting,
        "post_worker_init": agent.post_worker_init,
        "worker_exit": agent.worker_exit,
    }
