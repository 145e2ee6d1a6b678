"""Settings, read once from the environment and `.env`.

Each field carries its variable's documentation, so `docs/settings.md` can be generated from here
(`python -m solarhost.settings`) and a test can hold the two together.
"""

import os
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream
from environs import Env, EnvError, EnvValidationError
from marshmallow import ValidationError

from solarhost import setting_values as values
from solarhost.errors import SettingsError
from solarhost.net import is_loopback

DEFAULT_API_KEY = "change-me-please"


def _setting(default: Any, doc: str, read: values.Read = values.text, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"doc": doc, "read": read, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field a variable: `api_key` is `API_KEY`. Built by `load`, or directly in tests."""

    # Server
    api_key: str = _setting(
        DEFAULT_API_KEY,
        "Key that callers send as `X-API-Key`. The default is accepted on loopback only.",
        values.key,
        secret=True,
    )
    host: str = _setting("127.0.0.1", "Address to listen on; `0.0.0.0` for all.", values.host)
    port: int = _setting(8001, "Port to listen on.", values.whole(1, 65535))
    threads: int = _setting(
        64,
        "Request threads; a WebSocket stream holds one. More are started only while all of them wait.",
        values.whole(4, 1024),
    )
    max_streams: int = _setting(
        48,
        "WebSocket streams at once; kept below `THREADS` so that REST always has threads.",
        values.whole(1, 1000),
    )
    ping_interval_s: float = _setting(
        15.0,
        "Seconds between pings of a WebSocket stream; a peer that misses one is dropped at the next.",
        values.number(0.1),
    )
    log_level: str = _setting(
        "INFO",
        "Level of the agent's own log: `DEBUG`, `INFO`, `WARNING` or `ERROR`.",
        values.choice("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    access_log: bool = _setting(False, "Log one line for each request, without its query.", values.flag)

    # Files
    config_file: Path = _setting(
        Path("config.json"), "Where instances are stored. Two agents can't share one.", values.file
    )
    log_dir: Path = _setting(Path("logs"), "Folder of the instances' log files.", values.folder)
    log_buffer_size: int = _setting(
        1000, "Log lines of each instance kept in memory.", values.whole(1, 1_000_000)
    )
    retained_log_buffers: int = _setting(
        20, "How many ended instances keep their lines in memory.", values.whole(0)
    )
    log_file_retention_s: float = _setting(
        86400.0, "Log files older than this go, except the newest of each instance.", values.number(0)
    )
    log_file_max_mb: int = _setting(
        512,
        "Disk that one log file may take (MiB): the oldest part goes, the first 64 KiB stay.",
        values.whole(1),
    )

    # Instances
    start_port: int = _setting(3500, "First port given to instances.", values.whole(1, 65535))
    max_retries: int = _setting(2, "How often a failed start is tried again.", values.whole(0))
    instance_ready_timeout_s: float = _setting(
        600.0, "Seconds a start may go without progress (bytes read, memory growing).", values.number(0.1)
    )
    instance_ready_max_s: float = _setting(3600.0, "Seconds a start may take in all.", values.number(0.1))
    stop_timeout_s: float = _setting(10.0, "Seconds between SIGTERM and SIGKILL.", values.number(0))
    on_shutdown: str = _setting(
        "stop",
        "`stop` ends the instances with the agent, `detach` leaves them running for the next one to adopt.",
        values.choice("stop", "detach"),
    )
    llama_server_path: str = _setting("", "`llama-server` or its folder; else the one on `PATH`.")
    vram_release_timeout_s: float = _setting(
        15.0,
        "Seconds a start waits for GPU memory that a stopped process is still giving back.",
        values.number(0),
    )

    # Models
    models_dir: Path = _setting(Path("models"), "Folder of pulled models and their manifest.", values.folder)
    max_pulls: int = _setting(2, "Downloads at once; further ones wait.", values.whole(1))
    min_free_disk_gb: float = _setting(10.0, "Disk (GiB) that a pull or job leaves free.", values.number(0))
    pull_stall_timeout_s: float = _setting(
        120.0, "Seconds without a byte before a download is tried again.", values.number(0.1)
    )
    pull_retries: int = _setting(
        6,
        "How often in a row a download is tried again before it fails; a byte that came resets the count.",
        values.whole(0),
    )
    pull_retry_delay_s: float = _setting(
        1.0, "Seconds before a download is tried again, doubled each time up to a minute.", values.number(0)
    )
    pull_progress_interval_s: float = _setting(
        5.0, "Seconds between progress events of a pull.", values.number(0.05)
    )
    verify_cached: str = _setting(
        "size",
        "How a pulled model is checked before it is used again: `size` (size and time) or `full` (sha256).",
        values.choice("size", "full"),
    )
    hf_token: str = _setting("", "HuggingFace token for gated or private models.", secret=True)
    hf_endpoint: str = _setting(
        "", "Address of a HuggingFace mirror, in place of the public hub.", values.address()
    )
    hf_cache_dir: Path | None = _setting(
        None, "HuggingFace cache, mounted into job containers.", values.folder
    )
    harbor_url: str = _setting(
        "",
        "OCI registry for `repo://` sources, such as `https://harbor.example.com`.",
        values.address("https"),
    )
    harbor_username: str = _setting("", "User of the registry.")
    harbor_password: str = _setting("", "Password or token of the registry.", secret=True)
    ssl_cert_file: str = _setting("", "CA bundle of a private registry or hub (PEM).", values.authorities)
    requests_ca_bundle: str = _setting(
        "", "The same, under the name that the `requests` library uses.", values.authorities
    )

    # Resources
    gpu_telemetry_override: list[dict[str, Any]] | None = _setting(
        None,
        "JSON array of `{index, name, total_gb, used_gb}` that stands in for NVML (development and tests).",
        values.gpus,
    )
    default_reservation_ttl_seconds: int = _setting(
        86400, "Life of a reservation that names none.", values.whole(1)
    )

    # Jobs
    docker_host: str = _setting(
        "unix:///var/run/docker.sock",
        "Socket of this machine's Docker engine, which runs job containers.",
        values.engine,
    )
    jobs_dir: Path = _setting(Path("jobs"), "Folder of job workspaces, logs and records.", values.folder)
    max_jobs: int = _setting(4, "Jobs at once; further ones wait.", values.whole(1))
    docker_grace_s: float = _setting(
        60.0, "Seconds a running job waits for a Docker engine that went away.", values.number(0)
    )
    container_uid: int = _setting(1000, "User id inside job containers.", values.whole(0))
    container_gid: int = _setting(1000, "Group id inside job containers.", values.whole(0))

    # Link to solar-control
    solar_control_url: str = _setting(
        "",
        "Address of solar-control; empty for a host alone. Of several (comma separated) the first counts.",
        values.control,
    )
    solar_control_api_key: str = _setting(
        "",
        "Key for solar-control, which calls this host back with it; else `API_KEY`.",
        values.key,
        secret=True,
    )
    host_name: str = _setting("", "Name under which the host registers; else the machine's.")
    insecure: bool = _setting(False, "Accept any certificate of solar-control.", values.flag)
    ws_reconnect_delay: float = _setting(
        1.0, "Seconds before the first reconnect, doubled each time.", values.number(0.01)
    )
    ws_reconnect_max_delay: float = _setting(30.0, "Longest wait between reconnects.", values.number(0.01))
    ws_silence_timeout: float = _setting(
        40.0,
        "Seconds without a sign of life of solar-control before the link is made anew.",
        values.number(0.1),
    )
    health_interval_s: float = _setting(10.0, "Seconds between health reports to it.", values.number(0.1))
    commands_over_link: bool = _setting(
        True, "Let solar-control drive instances over the link, for hosts that it can't call.", values.flag
    )

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """The keys that open the REST API; instances accept them too."""
        return tuple(dict.fromkeys(key for key in (self.api_key, self.solar_control_api_key) if key))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not leave the process in a log line, an error or a payload."""
        secrets = (str(getattr(self, f.name)) for f in fields(self) if f.metadata["secret"])
        return tuple(dict.fromkeys(secret for secret in secrets if secret))


def environment_without_secrets() -> dict[str, str]:
    """This process's environment for the programs that it starts; they get the keys they need by name."""
    secret = {setting.name.upper() for setting in fields(Settings) if setting.metadata["secret"]}
    return {name: value for name, value in os.environ.items() if name not in secret}


def load(env_file: Path = Path(".env")) -> Settings:
    """Settings from the environment; what it does not name comes from `env_file`, if there is one.

    Raises:
        SettingsError: naming the variable, its value unless it is a secret, and what would be right.
    """
    settings = read(env_file)
    check(settings)
    return settings


def read(env_file: Path = Path(".env")) -> Settings:
    """As `load`, but values that contradict each other are let through.

    Raises:
        SettingsError: a value, or the file, can't be read.
    """
    env = Env(eager=True)
    try:
        if env_file.is_file():
            _check_lines(env_file)
            env.read_env(str(env_file), recurse=False)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{env_file} can't be read: {error}") from error
    return Settings(**{setting.name: _read(env, setting) for setting in fields(Settings)})


def _check_lines(env_file: Path) -> None:
    """Raises SettingsError: a line makes no sense; dotenv would pass over it, and over what it sets."""
    with env_file.open(encoding="utf-8") as file:
        for binding in parse_stream(file):
            if binding.error:
                raise SettingsError(
                    f"{env_file}, line {binding.original.line}, can't be read: it has to be NAME=VALUE, "
                    "and a quote that opens has to close"
                )


def _read(env: Env, setting: Field[Any]) -> Any:
    name = setting.name.upper()
    default = None if setting.default is MISSING else setting.default
    raw = env.str(name, "")
    if not raw.strip():  # `PORT=` in a .env means "not set"
        return default
    try:
        return setting.metadata["read"](env, name, default)
    except (EnvError, ValidationError, ValueError, OSError) as error:
        shown = "(secret)" if setting.metadata["secret"] else repr(raw)
        raise SettingsError(
            f"{name}={shown} is not valid: {_why(error)} ({setting.metadata['doc'].rstrip('.')})"
        ) from error


def _why(error: Exception) -> str:
    """What is wrong with a value, as a part of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return f"it can't be read: {error.strerror}"
    if not isinstance(error, EnvValidationError):
        return str(error).rstrip(".")
    said = " ".join(error.error_messages)  # environs puts the variable's name and a list around them
    return said[:1].lower() + said[1:].rstrip(".")


def check(settings: Settings) -> None:
    """Raises SettingsError: two values contradict each other, or the key would let anybody in."""
    if settings.api_key == DEFAULT_API_KEY and not is_loopback(settings.host):
        raise SettingsError(
            f"API_KEY is not set, and HOST={settings.host} is reachable from outside: "
            "set API_KEY to a secret of your own, or HOST=127.0.0.1"
        )
    if settings.max_streams >= settings.threads:
        raise SettingsError(
            f"MAX_STREAMS={settings.max_streams} leaves no thread for REST: "
            f"set it below THREADS={settings.threads}"
        )


def document() -> str:
    """All settings as a Markdown page."""
    lines = [
        "# Settings",
        "",
        "Each is a variable of the environment or a line of the file `.env` in the folder that the agent is",
        "started in; the environment comes first. An empty value counts as not set. A value that can't be",
        "read stops the start with a sentence that names the variable.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for setting in fields(Settings):
        default = setting.default
        shown = f"`{default}`" if default not in ("", None) else "–"
        lines.append(f"| `{setting.name.upper()}` | {shown} | {setting.metadata['doc']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201 - its output is the document
