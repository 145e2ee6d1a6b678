"""`make run`: start the agent, let it serve small real models, ask one question, and keep serving."""

import os
import secrets
import shutil
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
from contrib.setup.models import embedding_model, ensure_gguf
from contrib.setup.steps import ROOT, say
from solarhost.errors import SettingsError
from solarhost.settings import DEFAULT_API_KEY, Settings, load

CHAT_ALIAS = "gemma-3:270m"
QUESTION = "What is the capital of France?"
EMBEDDING_ALIAS = "embed:minilm"
SENTENCES = ("A cat sleeps on the sofa.", "A kitten naps on the couch.", "The stock market fell today.")
STARTED_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 600.0


class Client:
    """The REST API of the agent and of its instances, which take the same key."""

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

    def call(self, method: str, path: str, body: object = None, *, base: str | None = None) -> Any:
        """The parsed answer.

        Raises:
            SystemExit: it is an error; shows it.
        """
        url = (base or self.url) + path
        answer = self._session.request(method, url, json=body, timeout=ANSWERED_WITHIN_S)
        if answer.status_code == requests.codes.unauthorized:
            raise SystemExit("It does not take the API_KEY in .env: stop it, or set another PORT in .env")
        if not answer.ok:
            raise SystemExit(f"{method} {path} was answered with {answer.status_code}: {answer.text}")
        return answer.json()


def main() -> None:
    os.chdir(ROOT)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell had SIGINT ignored
        signal.signal(number, _interrupt)
    settings = _settings()
    client = Client(settings)
    if client.is_up():
        say(f"An agent is running already at {client.url}")
        _show(client)
        return
    agent = _spawn(settings)
    try:
        _wait_until_up(client, agent, _agent_log(settings))
        _show(client)
        say("Ctrl-C stops the agent and its instances")
        raise SystemExit(last_words(agent.wait()))
    except KeyboardInterrupt:
        say("Stopping the agent and its instances; `.venv/bin/solar-host` in this folder starts them again")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave them behind
        agent.terminate()
        agent.wait()


def _settings() -> Settings:
    """The settings, with a key of its own: one is made and kept in `.env` if there is none."""
    path = Path(".env")
    known = os.environ.get("API_KEY") or dotenv_values(path).get("API_KEY")
    if not known or known == DEFAULT_API_KEY:
        note(path, "API_KEY", secrets.token_urlsafe(24))
        os.environ.pop("API_KEY", None)  # an empty or default one would come before the file
        say("A new API_KEY was written to .env")
    try:
        return load(path)
    except SettingsError as error:
        raise SystemExit(str(error)) from error


def note(path: Path, name: str, value: str) -> None:
    """Add a setting to an env file, which only its owner may read from then on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(descriptor, "a") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"\n{name}={value}\n")


def _spawn(settings: Settings) -> subprocess.Popen[bytes]:
    """The agent, in a session of its own: Ctrl-C reaches us, and we end it in order."""
    path = _agent_log(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if not settings.llama_server_path:
        program = str(ensure_llama_server())
        environment["LLAMA_SERVER_PATH"] = program
        if shutil.which("llama-server") is None:  # a later agent in this folder finds it, too
            note(Path(".env"), "LLAMA_SERVER_PATH", f"'{program}'")
            say("The LLAMA_SERVER_PATH of the one that was built was written to .env")
    say(f"Starting the agent; its own log is {path}")
    with path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "solarhost", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def last_words(code: int) -> str:
    """What to know about an agent that nobody stopped here; a negative code is the signal that ended it."""
    if code < 0:
        return (
            f"The agent was killed by signal {-code}. Its model servers may still run: "
            "`make run`, or `solar-host` in this folder, takes them up again"
        )
    return f"The agent ended by itself, with {code}; its log says why"


def _agent_log(settings: Settings) -> Path:
    return settings.log_dir / "agent.log"


def _wait_until_up(client: Client, agent: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not client.is_up():
        if agent.poll() is not None or time.monotonic() > deadline:
            print(*log.read_text(errors="replace").splitlines()[-40:], sep="\n")
            raise SystemExit(f"The agent did not start; the end of its log, {log}, is above")
        time.sleep(0.1)


def _show(client: Client) -> None:
    """Serve two models, use them, and say how to go on."""
    chat = _start(
        client,
        {
            "backend_type": "llamacpp",
            "alias": CHAT_ALIAS,
            "model": str(ensure_gguf()),
            "threads": max(1, (os.cpu_count() or 2) // 2),
            "ctx_size": 4096,
            "host": "127.0.0.1",
        },
    )
    print(f"\n    You:   {QUESTION}\n    Model: {_ask(client, chat)}\n", flush=True)
    embedding = _start(
        client,
        {
            "backend_type": "huggingface_embedding",
            "alias": EMBEDDING_ALIAS,
            "model_id": str(embedding_model()),
            "host": "127.0.0.1",
        },
    )
    first, *others = _embed(client, embedding)
    print(f'\n    How near to "{SENTENCES[0]}" is')
    for sentence, vector in zip(SENTENCES[1:], others, strict=True):
        print(f"      {sum(a * b for a, b in zip(first, vector, strict=True)):5.2f}  {sentence}")
    print(
        f"\n"
        f"    Agent       {client.url}\n"
        f"    Page        {client.url}/ui/\n"
        f"    API docs    {client.url}/docs\n"
        f"    Key         {client.key}   (API_KEY in .env)\n"
        f"    Chat        {_base(chat)}/v1/chat/completions, with the same key\n"
        f"    Embeddings  {_base(embedding)}/v1/embeddings\n"
        f"\n"
        f'    curl -H "X-API-Key: {client.key}" {client.url}/instances\n'
        f"    .venv/bin/solar-host instances ls\n"
        f"    .venv/bin/solar-host chat {CHAT_ALIAS}\n"
        f"    .venv/bin/solar-host doctor     what is missing on this machine\n"
        f"    .venv/bin/solar-host            after Ctrl-C: starts the agent and these instances again\n"
        f"\n"
        f"    {CHAT_ALIAS} is a small base model: it continues text, and chats poorly. For real use take a\n"
        f"    larger one that was trained to follow instructions: docs/first-model.md shows how.\n",
        flush=True,
    )


def _start(client: Client, config: dict[str, Any]) -> dict[str, Any]:
    """Start the instance of an earlier run, or a new one; returns it running."""
    known = {instance["config"]["alias"]: instance for instance in client.call("GET", "/instances")}
    instance = known.get(config["alias"])
    if instance is None:
        instance = client.call("POST", "/instances", {"config": config})["instance"]
    say(f"Starting the instance {config['alias']} ({instance['id']})")
    return dict(client.call("POST", f"/instances/{instance['id']}/start")["instance"])


def _ask(client: Client, instance: dict[str, Any]) -> str:
    """The model was trained to continue text, so the question is put as a text to continue."""
    body = {
        "prompt": f"Question: {QUESTION}\nAnswer:",
        "max_tokens": 30,
        "temperature": 0,
        "stop": ["\n"],
    }
    answer = client.call("POST", "/v1/completions", body, base=_base(instance))
    return str(answer["choices"][0]["text"]).strip()


def _embed(client: Client, instance: dict[str, Any]) -> list[list[float]]:
    """A vector of length 1 for each of the sentences."""
    answer = client.call("POST", "/v1/embeddings", {"input": SENTENCES}, base=_base(instance))
    return [item["embedding"] for item in answer["data"]]


def _base(instance: dict[str, Any]) -> str:
    return f"http://127.0.0.1:{instance['port']}"


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
