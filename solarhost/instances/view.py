"""Instances as other programs read them."""

from typing import Any

from solarhost.backends.base import Backend
from solarhost.instances.record import Record
from solarhost.instances.status import Status

OUTCOMES = (Status.RUNNING, Status.STOPPED, Status.FAILED)  # between them nothing is decided yet


def as_json(record: Record, backend: Backend) -> dict[str, Any]:
    """The instance of the REST API."""
    return {
        "id": record.id,
        "config": dict(record.config),
        "status": record.status,
        "port": record.port,
        "pid": record.pid,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "error_message": record.error_message,
        "retry_count": record.retry_count,
        "priority": record.priority,
        "managed_by": record.managed_by,
        "intent_id": record.intent_id,
        **_served(record, backend),
        "gpu_ids": list(record.gpu_ids) if record.gpu_ids else None,
        "vram_gb": record.vram_gb,
        "reason": record.reason if record.status in OUTCOMES else None,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "run": record.run,
        "adopted": record.adopted,
    }


def flat(record: Record, backend: Backend) -> dict[str, Any]:
    """The instance as solar-control hears of it; it must hold no `config` key."""
    return {
        "id": record.id,
        "alias": record.alias,
        "status": record.status,
        "port": record.port,
        "backend_type": record.backend_type,
        **_served(record, backend),
        "ctx_size": record.config.get("ctx_size"),
        "priority": record.priority,
        "managed_by": record.managed_by,
        "intent_id": record.intent_id,
        "gpu_ids": list(record.gpu_ids) if record.gpu_ids else None,
        "model_source": record.config.get("model_source"),
    }


def _served(record: Record, backend: Backend) -> dict[str, Any]:
    return {
        "supported_endpoints": backend.endpoints(record.config),
        "served_model_name": backend.served_model_name(record.config),
        "context_size": record.context_size or backend.context_size(record.config),
        "capabilities": backend.capabilities(record.config),
    }
