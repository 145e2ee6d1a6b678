"""The settings, the port, the disk and the folders."""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from solarhost.commands.checks.agent import health_of_agent, takes_key
from solarhost.commands.checks.finding import Finding, green, red, yellow
from solarhost.commands.config import ENV_FILE
from solarhost.commands.remote import local_url
from solarhost.doubts import unknown_names
from solarhost.errors import SettingsError
from solarhost.settings import DEFAULT_API_KEY, Settings, check

GIB = 1 << 30
ALMOST_FULL_GB = 1.0


def check_settings(settings: Settings) -> list[Finding]:
    """Their contradictions, the default key, and names in `.env` that are none."""
    step = f"correct {ENV_FILE}, unless it is meant for the model servers"
    found = [yellow("settings", sentence, step) for sentence in unknown_names(ENV_FILE)]
    try:
        check(settings)
    except SettingsError as error:
        why, _, step = str(error).rpartition(": ")
        return [*found, red("settings", why, step)]
    if settings.api_key == DEFAULT_API_KEY:
        step = "set API_KEY to a secret of your own; until then instances listen on 127.0.0.1, too"
        return [*found, yellow("settings", f"valid, with the default key on {settings.host}", step)]
    return found or [green("settings", "valid, with a key of their own")]


def check_port(settings: Settings) -> list[Finding]:
    """Free for the agent, or held by the agent itself; then also what that finds wrong."""
    health = health_of_agent(settings)
    return [_bindable(settings)] if health is None else _agent(settings, health)


def _agent(settings: Settings, health: Mapping[str, Any]) -> list[Finding]:
    url = local_url(settings)
    try:
        takes_it = takes_key(settings)
    except requests.RequestException:
        return [red("port", f"an agent answered at {url} and stopped doing so", "look at its log")]
    if not takes_it:
        step = "restart it, or give it the same API_KEY"
        return [red("port", f"an agent answers at {url} and refuses API_KEY", step)]
    problems = [yellow("agent", sentence, "its own log says more") for sentence in health.get("problems", ())]
    return [green("port", f"the agent {health.get('version')} answers at {url}"), *problems]


def _bindable(settings: Settings) -> Finding:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
            probe.listen(1)
        except OSError as error:
            return _not_bindable(settings, error)
    return green("port", f"{settings.port} on {settings.host} is free")


def _not_bindable(settings: Settings, error: OSError) -> Finding:
    port = settings.port
    if error.errno == errno.EADDRINUSE:
        text = f"{port} is taken by a program that is not the agent"
        return red("port", text, f"find it with `ss -ltnp 'sport = :{port}'` and stop it, or change PORT")
    return red(
        "port", f"can't listen on {settings.host} port {port}: {error.strerror}", "change HOST or PORT"
    )


def check_disk(settings: Settings) -> list[Finding]:
    """Free space of each file system that the agent writes to."""
    wanted, seen, found = settings.min_free_disk_gb, set(), []
    for folder in (settings.models_dir, settings.jobs_dir, settings.log_dir, settings.config_file.parent):
        place = _existing(folder)
        device = place.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(place).free / GIB
        text = f"{free:.1f} GiB free at {place}"
        step = "free some, or move MODELS_DIR and JOBS_DIR"
        if free < min(ALMOST_FULL_GB, wanted):
            found.append(red("disk", f"{text}: almost full", step))
        elif free < wanted:
            text = f"{text}, and MIN_FREE_DISK_GB={wanted:g} has pulls and jobs refused"
            found.append(yellow("disk", text, step))
        else:
            found.append(green("disk", text))
    return found


def check_folders(settings: Settings) -> list[Finding]:
    """The agent has to be able to write to each."""
    folders = {
        "MODELS_DIR": settings.models_dir,
        "LOG_DIR": settings.log_dir,
        "JOBS_DIR": settings.jobs_dir,
        "CONFIG_FILE": settings.config_file.parent,
    }
    found = [_writable(name, folder) for name, folder in folders.items()]
    bad = [finding for finding in found if finding is not None]
    return bad or [green("folders", "models, logs, jobs and configuration can be written")]


def _writable(name: str, folder: Path) -> Finding | None:
    place = _existing(folder)
    step = f"make it a folder that user {os.getuid()} may write to, or change {name}"
    if not place.is_dir():
        return red("folders", f"{name}: {place} is not a folder", step)
    try:
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return red("folders", f"{name}: {place} can't be written: {error.strerror}", step)


def _existing(folder: Path) -> Path:
    """Itself, or what is there of it already."""
    place = folder.absolute()
    while True:
        try:
            place.stat()
        except OSError:
            place = place.parent
        else:
            return place
