"""Times as the API writes them: ISO 8601, UTC, with the zone."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    return moment.isoformat()


def now_iso() -> str:
    return datetime.now(UTC).isoformat()
