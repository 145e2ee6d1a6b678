"""What a link needs from the rest of a host, as plain values that a test can change."""

import time
from typing import Any

from solarhost.control import payloads
from solarhost.control.link import ControlLink
from solarhost.events import JobEvent, LogLines, PullProgress
from solarhost.settings import Settings
from solarhost.times import now_iso

KEY = "key-1234"
DIMENSION = {
    "total_gb": 64.0,
    "system_used_gb": 12.0,
    "reserved_headroom_gb": 4.0,
    "reported_used_gb": 16.0,
    "available_gb": 48.0,
}
FLAT = {
    "id": "i-1",
    "alias": "llama-3:8b",
    "status": "stopped",
    "port": None,
    "backend_type": "llamacpp",
    "supported_endpoints": ["/v1/chat/completions"],
    "served_model_name": "llama-3:8b",
    "context_size": 4096,
    "ctx_size": 4096,
    "capabilities": None,
    "priority": "production",
    "managed_by": None,
    "intent_id": None,
    "gpu_ids": None,
    "model_source": None,
}


def flat(status: str = "stopped", **changes: Any) -> payloads.Json:
    return {**FLAT, "status": status, **changes}


class Host:
    """Owns a link and what it reports."""

    def __init__(self, url: str, **settings: Any):
        self.instances = [flat()]
        self.calls: list[tuple[str, str, Any]] = []
        self.delivered: list[str | None] = []  # ids of jobs
        self.resources: payloads.Json = {
            "memory_type": "RAM",
            "vram": None,
            "ram": DIMENSION,
            "disk": DIMENSION,
            "reservations": [],
        }
        values = {
            "solar_control_url": url,
            "api_key": KEY,
            "host_name": "gpu-1",
            "ws_reconnect_delay": 0.2,
            "ws_reconnect_max_delay": 0.4,
            **settings,
        }
        self.link = ControlLink(
            Settings(**values),
            registration=lambda: payloads.registration("gpu-1", self.instances, "cpu", ["llamacpp"], "1.0"),
            instances=lambda: self.instances,
            health=lambda: self.health(),
            dispatch=lambda method, path, body: self.dispatch(method, path, body),
            delivered=lambda event: self.delivered.append(event.payload.get("job_id")),
        )

    def health(self) -> payloads.Json:
        memory = {"used_gb": 1.0, "total_gb": 2.0, "available_gb": 1.0, "percent": 50.0, "memory_type": "RAM"}
        disk = {"total_gb": 2.0, "used_gb": 1.0, "available_gb": 1.0}
        return payloads.health_data(
            self.instances, "cpu", ["llamacpp"], "1.0", memory=memory, disk=disk, resources=self.resources
        )

    def dispatch(self, method: str, path: str, body: payloads.Json | None) -> tuple[int, object]:
        self.calls.append((method, path, body))
        return 200, {"did": f"{method} {path}"}

    def close(self, within_s: float = 5.0) -> None:
        self.link.close(time.monotonic() + within_s)


def job_ended(number: int) -> JobEvent:
    payload = {
        "job_id": f"job-{number}",
        "host_id": None,
        "status": "completed",
        "timestamp": now_iso(),
        "workspace_path": "/jobs/x",
        "retention_deadline": now_iso(),
    }
    return JobEvent("job_completed", payload, run=f"run-{number}", number=1)


def pull(phase: str, uri: str = "repo://a:1") -> PullProgress:
    return PullProgress(uri, phase, 5, 10, 1.5, now_iso())


def log_lines(first_seq: int, count: int, text: str = "a line of a model server's log") -> LogLines:
    return LogLines("i-1", first_seq, now_iso(), [text] * count)
