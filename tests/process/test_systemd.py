"""The service as systemd runs it: a real systemd, the unit as it is installed, a real model server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent import ROOT, wait_until
from tests.systemd_machine import SystemdMachine

UNIT = "/etc/systemd/system/solar-host.service"
SETTINGS = "/etc/solar-host/solar-host.env"
EXPOSURE = 25  # of 100, as `systemd-analyze security` rates it; what GPUs need is the most of it
WATCHDOG_S = 10  # of a test's time, and enough on a busy machine
SETTINGS_HERE = ("LLAMA_SERVER_PATH=/opt/llama/llama-server", "STOP_TIMEOUT_S=1")


@pytest.fixture(scope="module")
def machine(
    tmp_path_factory: pytest.TempPathFactory, llama_server: Path, gguf: Path
) -> Iterator[SystemdMachine]:
    """One on which the service was installed and started as docs/systemd.md says."""
    folders = {llama_server.resolve().parent: "/opt/llama", gguf.parent: "/opt/models"}
    machine = SystemdMachine(tmp_path_factory.mktemp("systemd"), folders)
    install, start, _ = commands_of_the_page()
    try:
        machine.boot()
        machine.run(install)
        machine.run(f"printf '%s\n' {' '.join(SETTINGS_HERE)} >> {SETTINGS}")
        machine.run(f"mkdir {UNIT}.d; printf '[Service]\nWatchdogSec={WATCHDOG_S}\n' > {UNIT}.d/here.conf")
        machine.run("systemctl daemon-reload")
        machine.run(start)
        yield machine
    finally:
        machine.end()


@pytest.fixture
def served(machine: SystemdMachine, gguf: Path) -> int:
    """The pid of a model server that runs."""
    machine.run("systemctl start solar-host")
    if not call(machine, "GET", "/instances"):
        model = f"/opt/models/{gguf.name}"
        config = {"backend_type": "llamacpp", "alias": "chat", "model": model, "ctx_size": 512, "threads": 1}
        call(machine, "POST", "/instances", {"config": config})
    call(machine, "POST", f"/instances/{call(machine, 'GET', '/instances')[0]['id']}/start")
    return running(machine)


def commands_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "systemd.md").read_text()
    return re.findall(r"<!-- run -->\n```sh\n(.*?)```", page, re.DOTALL)


def test_systemd_finds_no_fault_in_the_unit(machine: SystemdMachine) -> None:
    assert machine.run(f"systemd-analyze verify {UNIT}") == ""
    machine.run(f"systemd-analyze security --no-pager --threshold={EXPOSURE} solar-host.service")


def test_the_settings_are_for_the_agent_only_and_survive_a_second_install(machine: SystemdMachine) -> None:
    before = machine.run(f"cat {SETTINGS}")
    assert re.search("^API_KEY=[0-9a-f]{48}$", before, re.MULTILINE)
    assert re.search("^CONTAINER_UID=[0-9]+$", before, re.MULTILINE)
    machine.run("contrib/systemd/install.sh")
    assert machine.run(f"cat {SETTINGS}") == before
    assert machine.run(f"stat --format '%a %U' {SETTINGS}") == "600 solar-host\n"


def test_it_is_up_for_systemd_when_it_serves(machine: SystemdMachine) -> None:
    assert show(machine, "StatusText") == "Serving"
    assert "No instances" in machine.run(commands_of_the_page()[-1])


def test_a_reload_with_a_wrong_setting_changes_nothing(machine: SystemdMachine, served: int) -> None:
    before = show(machine, "MainPID")
    machine.run(f"echo THREADS=many >> {SETTINGS}")
    assert "Job for solar-host.service failed" in machine.run("systemctl reload solar-host", check=False)
    machine.run(f"sed -i /^THREADS/d {SETTINGS}")
    assert "THREADS='many' is not valid" in machine.journal()
    assert (show(machine, "MainPID"), running(machine)) == (before, served)


def test_a_reload_brings_an_agent_with_new_settings(machine: SystemdMachine, served: int) -> None:
    before = show(machine, "MainPID")
    machine.run(f"echo ON_SHUTDOWN=detach >> {SETTINGS}; systemctl reload solar-host")
    wait_for_another(machine, before)
    assert running(machine) == served
    machine.run("systemctl stop solar-host")
    assert lives(machine, served)  # as the new setting says
    machine.run(f"sed -i /^ON_SHUTDOWN/d {SETTINGS}; systemctl kill solar-host")
    wait_until(lambda: not lives(machine, served), 20, "the model server to end")


def test_after_a_crash_another_agent_has_the_model_servers(machine: SystemdMachine, served: int) -> None:
    before = show(machine, "MainPID")
    machine.run("systemctl kill --kill-whom=main --signal=KILL solar-host")
    wait_for_another(machine, before)
    assert running(machine) == served


def test_an_agent_that_hangs_is_replaced(machine: SystemdMachine, served: int) -> None:
    before = show(machine, "MainPID")
    machine.run(f"pkill -STOP --parent {before} --full 'solarhost serve'")
    wait_for_another(machine, before)
    assert f"Watchdog timeout (limit {WATCHDOG_S}s)" in machine.journal()
    errors = machine.run("journalctl --no-pager --unit solar-host --identifier solar-host --priority err")
    assert "was sent SIGKILL" in errors  # by the master, to the worker that hung
    assert running(machine) == served


def test_a_stop_ends_the_model_servers(machine: SystemdMachine, served: int) -> None:
    machine.run("systemctl stop solar-host")
    assert not lives(machine, served)


def call(machine: SystemdMachine, method: str, path: str, body: object = None) -> Any:
    """What the API answers."""
    key = machine.run(f"sed -n s/^API_KEY=//p {SETTINGS}").strip()
    words = f"-X {method} -H 'X-API-Key: {key}' -H 'Content-Type: application/json'"
    data = f"-d '{json.dumps(body)}'" if body else ""
    return json.loads(machine.run(f"curl -sS --fail-with-body {words} {data} http://127.0.0.1:8001{path}"))


def running(machine: SystemdMachine) -> int:
    """The pid of the one instance, once it runs."""

    def pid() -> int | None:
        (row,) = call(machine, "GET", "/instances")
        return row["pid"] if row["status"] == "running" else None

    return int(wait_until(pid, 30, "the instance to run"))


def show(machine: SystemdMachine, name: str) -> str:
    return machine.run(f"systemctl show --value --property={name} solar-host").strip()


def wait_for_another(machine: SystemdMachine, before: str) -> None:
    wait_until(
        lambda: show(machine, "MainPID") not in ("0", before) and show(machine, "ActiveState") == "active",
        60,
        "another agent",
    )


def lives(machine: SystemdMachine, pid: int) -> bool:
    return machine.run(f"[ -d /proc/{pid} ] && echo yes", check=False) == "yes\n"
