"""REST calls made from inside the process, for commands that come over the control link."""

from typing import Any

from flask import Flask


class InProcessRest:
    """Calls a route exactly as a client would, without a socket. Safe from any thread."""

    def __init__(self, app: Flask, key: str):
        self._app = app
        self._headers = {"X-API-Key": key}

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, object]:
        """Status and parsed body of the answer."""
        response = self._app.test_client().open(path, method=method, json=body, headers=self._headers)
        return response.status_code, response.get_json(silent=True)
