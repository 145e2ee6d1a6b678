"""`make run`: start the agent, let it serve a small real model, ask one question, and keep serving."""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import requests
from dotenv import dotenv_values

from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import ensure_gguf
from contrib.setup.steps import ROOT, say
from solarhost.errors import SettingsError
from solarhost.settings import DEFAULT_API_KEY, Settings, load

ALIAS = "gemma-3:270m"
QUESTION = "What is the capital of France?"
STARTED_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 600.0
AGENT_LOG = ROOT / "run" / "agent.log"


class Client:
    """The REST API of the agent, for this demo."""

    def __init__(self, settings: Settings):
        host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
        self.url = f"http://{host}:{settings.port}"
        self.key = settings.api_key
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["X-API-Key"] = self.key

    def is_up(self) -> bool:
        try:
            return self._session.get(f"{self.url}/health", timeout=2).ok
        except requests.RequestException:
            return False

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The parsed answer.

        Raises:
            SystemExit: it is an error; shows it.
        """
        answer = self._session.request(method, self.url + path, json=body, timeout=ANSWERED_WITHIN_S)
        if not answer.ok:
            raise SystemExit(f"{method} {path} was answered with {answer.status_code}: {answer.text}")
        return answer.json()


def main() -> None:
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, _interrupt)
    settings = _settings()
    client = Client(settings)
    if client.is_up():
        say(f"An agent is running already at {client.url}")
        _show(client)
        return
    agent = _spawn(settings)
    try:
        _wait_until_up(client, agent)
        _show(client)
        say("Ctrl-C stops the agent and its instances")
        agent.wait()
    except KeyboardInterrupt:
        say("Stopping the agent and its instances")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave them behind
        agent.terminate()
        agent.wait()


def _settings() -> Settings:
    """The settings, with a key of its own: one is made and kept in `.env` if there is none."""
    path = Path(".env")
    known = os.environ.get("API_KEY") or dotenv_values(path).get("API_KEY")
    if not known or known == DEFAULT_API_KEY:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a") as file:
            os.fchmod(descriptor, 0o600)
            file.write(f"\nAPI_KEY={secrets.token_urlsafe(24)}\n")
        os.environ.pop("API_KEY", None)  # an empty or default one would come before the file
        say("A new API_KEY was written to .env")
    try:
        return load(path)
    except SettingsError as error:
        raise SystemExit(str(error)) from error


def _spawn(settings: Settings) -> subprocess.Popen[bytes]:
    """The agent, in a session of its own: Ctrl-C reaches us, and we end it in order."""
    AGENT_LOG.parent.mkdir(exist_ok=True)
    environment = dict(os.environ)
    if not settings.llama_server_path:
        environment["LLAMA_SERVER_PATH"] = str(ensure_llama_server())
    say(f"Starting the agent; its own log is {AGENT_LOG.relative_to(ROOT)}")
    with AGENT_LOG.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "solarhost", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_up(client: Client, agent: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not client.is_up():
        if agent.poll() is not None or time.monotonic() > deadline:
            print(AGENT_LOG.read_text(errors="replace"))
            raise SystemExit("The agent did not start; what it printed is above")
        time.sleep(0.1)


def _show(client: Client) -> None:
    """Serve the model, ask it, and say how to go on."""
    instance = _instance(client)
    say(f"Starting the instance {ALIAS} ({instance['id']})")
    instance = client.call("POST", f"/instances/{instance['id']}/start")["instance"]
    base = f"http://127.0.0.1:{instance['port']}"
    print(f"\n    You:   {QUESTION}")
    print(f"    Model: {_ask(base, client.key)}\n")
    print(
        f"    Agent          {client.url}\n"
        f"    API docs       {client.url}/docs\n"
        f"    Key            {client.key}   (API_KEY in .env)\n"
        f"    Model's API    {base}/v1 (OpenAI's), with the same key\n"
        f"\n"
        f'    curl -H "X-API-Key: {client.key}" {client.url}/instances\n'
    )


def _instance(client: Client) -> dict[str, Any]:
    """The demo's instance: the one of an earlier run, or a new one."""
    config = {
        "backend_type": "llamacpp",
        "alias": ALIAS,
        "model": str(ensure_gguf()),
        "threads": os.cpu_count() or 2,
        "ctx_size": 4096,
        "host": "127.0.0.1",
    }
    for instance in client.call("GET", "/instances"):
        if instance["config"]["alias"] == ALIAS:
            return dict(instance)
    return dict(client.call("POST", "/instances", {"config": config})["instance"])


def _ask(base: str, key: str) -> str:
    """The model was trained to continue text, so the question is put as a text to continue."""
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(
            f"{base}/v1/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={
                "prompt": f"Question: {QUESTION}\nAnswer:",
                "max_tokens": 30,
                "temperature": 0,
                "stop": ["\n"],
            },
            timeout=ANSWERED_WITHIN_S,
        )
    if not answer.ok:
        raise SystemExit(f"The model answered with {answer.status_code}: {answer.text}")
    return str(answer.json()["choices"][0]["text"]).strip()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
