"""The operator page in a real browser, against a real agent.

What the browser showed is kept in `build/screenshots/`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import axe_core_python
import pytest
import requests

from tests.agent import ROOT, Agent
from tests.browser import Browser, running_browser
from tests.conftest import AgentFactory
from tests.docker_engine import DockerEngine
from tests.jobs_fixtures import body, shell, waiting
from tests.operator_page import button, create, row, sign_in, wait_for_line, wait_for_status
from tests.process.models_faults import noise
from tests.process.models_hub import Hub
from tests.process.test_instances_life import FAKE

AXE = Path(axe_core_python.__file__).with_name("axe.min.js")
SCREENSHOTS = ROOT / "build" / "screenshots"
SIZES = {"phone": (360, 780), "wide": (1920, 1080)}
HOSTILE = '<img src=x onerror="document.title=1"><b>bold</b>'
BUSY = (
    "slot launch_slot_: id  3 | task 0 | processing task, is_child = 0",
    "slot print_timing: id  3 | task 0 | n_decoded =    120, tg =  42.50 t/s",
)
GPUS = [
    {"index": 0, "name": "NVIDIA H200", "total_gb": 139.8, "used_gb": 61.2},
    {"index": 1, "name": "NVIDIA H200", "total_gb": 139.8, "used_gb": 132.0},
]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser") / "profile", SCREENSHOTS) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.size(1400)
    chromium.scheme("light")
    chromium.errors.clear()
    chromium.requested.clear()
    return chromium


@pytest.fixture
def agent(make_agent: AgentFactory) -> Agent:
    agent = make_agent(
        LLAMA_SERVER_PATH=str(FAKE),
        MAX_RETRIES="0",
        STOP_TIMEOUT_S="1",
        GPU_TELEMETRY_OVERRIDE=json.dumps(GPUS),
    )
    agent.start()
    return agent


def newest_line(browser: Browser) -> str:
    return str(browser.evaluate("document.querySelector('#log-lines .line:last-child span').textContent"))


def serious_findings(browser: Browser) -> list[str]:
    """What axe-core has to say against contrast, labels, roles and the like."""
    if not browser.evaluate("'axe' in window"):
        browser.evaluate(AXE.read_text() + ";0")
    found = browser.evaluate("axe.run(document, {resultTypes: ['violations']}).then((all) => all.violations)")
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def pictures(browser: Browser, name: str) -> None:
    """Of both sizes and schemes, each checked for access; the page is never wider than the screen."""
    for size, (width, height) in SIZES.items():
        browser.size(width, height)
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            browser.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
            browser.screenshot(f"{name}-{size}-{scheme}")
            assert serious_findings(browser) == [], f"{name} at {width} px, {scheme}"
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.size(1400)
    browser.scheme("light")


def test_an_operator_starts_follows_searches_and_stops(browser: Browser, agent: Agent):
    raw = repr("\n".join((HOSTILE, *BUSY, "")).encode())
    instance_id = create(agent, "llama-3:8b", f"--raw={raw}", "--chatter=50")
    sign_in(browser, agent)
    wait_for_status(browser, instance_id, "stopped")
    browser.click(button(instance_id, "Start"))
    wait_for_status(browser, instance_id, "running")
    browser.wait_for(
        f"document.querySelector('{row(instance_id)} .activity').textContent.includes('42.5 tokens/s')",
        "the speed on the page",
    )

    browser.click(button(instance_id, "Log"))
    assert browser.evaluate("document.activeElement.id") == "log-title"
    wait_for_line(browser, HOSTILE)
    assert browser.evaluate("document.querySelectorAll('#log-lines :is(img, b)').length") == 0
    assert browser.evaluate("document.title") == "Solar Host"
    seen = newest_line(browser)
    browser.wait_for(
        f"document.querySelector('#log-lines .line:last-child span').textContent !== {json.dumps(seen)}",
        "a newer line",
    )

    browser.click("#log-pause")
    paused = newest_line(browser)
    browser.wait_for("document.getElementById('log-count').textContent.includes(' new')", "lines that wait")
    assert newest_line(browser) == paused
    browser.click("#log-pause")
    browser.wait_for(
        f"document.querySelector('#log-lines .line:last-child span').textContent !== {json.dumps(paused)}",
        "the log to go on",
    )

    browser.type("#log-search", "LISTENING")
    browser.wait_for(
        "document.querySelectorAll('#log-lines .line').length === 1", "the one line that matches"
    )
    assert browser.text("#log-lines mark") == "listening"
    browser.type("#log-search", "")
    wait_for_line(browser, HOSTILE)
    pictures(browser, "log")
    browser.press("Escape")
    assert not browser.evaluate("document.body.classList.contains('with-log')")

    browser.click(button(instance_id, "Stop"))
    assert "llama-3:8b" in browser.text("#confirm")
    browser.screenshot("confirm")
    browser.press("Escape")
    assert agent.instance(instance_id)["status"] == "running", "Escape says no"
    browser.click(button(instance_id, "Restart"))
    browser.click("#confirm-yes")
    browser.wait_for(
        "document.getElementById('notices').textContent.includes('is running again')", "the restart"
    )
    assert agent.instance(instance_id)["run"] == 2
    browser.click(button(instance_id, "Stop"))
    browser.click("#confirm-yes")
    wait_for_status(browser, instance_id, "stopped")
    assert agent.instance(instance_id)["status"] == "stopped"
    assert browser.errors == []
    assert {urlsplit(url).netloc for url in browser.requested} == {urlsplit(agent.url).netloc}


def test_the_log_goes_on_without_a_gap_after_the_agent_restarted(browser: Browser, agent: Agent):
    instance_id = create(agent, "chatty", "--chatter=20")
    agent.post(f"/instances/{instance_id}/start")
    sign_in(browser, agent)
    wait_for_status(browser, instance_id, "running")
    browser.click(button(instance_id, "Log"))
    wait_for_line(browser, "chatter 5")
    agent.kill()
    browser.wait_for("document.getElementById('log-link').dataset.link === 'waiting'", "the loss to be seen")
    browser.wait_for("document.getElementById('health').dataset.status === 'lost'", "the agent to be missed")
    before = int(newest_line(browser).split()[-1])
    agent.start()
    wait_for_line(browser, f"chatter {before + 40}")
    browser.click("#log-pause")
    numbers = browser.evaluate(
        "[...document.querySelectorAll('#log-lines span')].map((line) => line.textContent)"
        ".filter((text) => text.startsWith('chatter ')).map((text) => Number(text.slice(8)))"
    )
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_flood_of_lines_leaves_the_page_usable(browser: Browser, agent: Agent):
    instance_id = create(agent, "flood", "--chatter=10000")
    agent.post(f"/instances/{instance_id}/start")
    sign_in(browser, agent)
    browser.click(button(instance_id, "Log"))
    browser.wait_for("document.getElementById('log-count').textContent === '5,000 lines'", "many lines")
    assert browser.evaluate("document.querySelectorAll('#log-lines .line').length") <= 300
    browser.type("#log-search", "77")
    browser.wait_for(
        "(() => { const lines = [...document.querySelectorAll('#log-lines .line span')];"
        " return lines.length && lines.every((line) => line.textContent.includes('77')); })()",
        "the lines that match",
    )
    browser.type("#log-search", "")
    browser.click("#log-pause")
    browser.wait_for(
        "document.querySelectorAll('#log-lines .line').length === 1000", "lines to read in peace"
    )
    browser.click("#log-close")
    browser.click(button(instance_id, "Stop"))
    browser.click("#confirm-yes")
    wait_for_status(browser, instance_id, "stopped")
    assert browser.errors == []


def test_fifty_instances_are_shown_and_leave_streams_to_others(browser: Browser, agent: Agent):
    made = [create(agent, f"model-{number}") for number in range(50)]
    for instance_id in made[:14]:
        agent.post(f"/instances/{instance_id}/start")
    sign_in(browser, agent)
    browser.wait_for("document.querySelectorAll('.instance').length === 50", "all rows")
    browser.wait_for(
        "document.querySelectorAll('.activity:not(:empty)').length === 14", "what the running do"
    )
    sockets = {url for url in browser.requested if url.startswith("ws:")}
    assert len(sockets) == 12
    shown = browser.evaluate(
        "[...document.querySelectorAll('.instance .name')].map((name) => name.textContent)"
    )
    assert shown == [f"model-{number}" for number in range(50)]


def test_the_page_shows_the_host(browser: Browser, agent: Agent):
    states = {"llama-3:8b": ("--raw=" + repr("\n".join((*BUSY, "")).encode()),), "embedder": ()}
    for alias, args in states.items():
        agent.post(f"/instances/{create(agent, alias, *args)}/start")
    broken = create(agent, "broken", "--exit=3")
    agent.post(f"/instances/{broken}/start")
    create(agent, "an-alias-that-is-rather-long-for-a-telephone:70b-instruct-q4_k_m")
    reserved = agent.post(
        "/resources/reservations",
        {
            "job_id": "finetune-7",
            "workload_type": "training",
            "vram_gb": 40,
            "ram_gb": 0.5,
            "ttl_seconds": 7200,
        },
    )
    assert reserved.status_code == 201, reserved.text
    sign_in(browser, agent)
    wait_for_status(browser, broken, "failed")
    browser.wait_for("document.querySelector('#meters')?.childElementCount === 4", "four bars")
    names = browser.evaluate("[...document.querySelectorAll('.meter-name')].map((name) => name.textContent)")
    assert names == ["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200", "RAM", "Disk"]
    assert "40.0 promised" in browser.text("#meters")
    assert "finetune-7" in browser.text("#reservations")
    browser.wait_for("document.getElementById('link').textContent === 'no solar-control'", "the link's state")
    status = agent.get("/health").json()["status"]
    browser.wait_for(f"document.getElementById('health').dataset.status === '{status}'", "the agent's health")
    browser.wait_for("document.getElementById('models-note').textContent === 'none on disk'", "no models")
    pictures(browser, "host")


def test_pulls_models_and_jobs_are_followed_and_cancelled(
    browser: Browser, make_agent: AgentFactory, docker_engine: DockerEngine
):
    hub = Hub()
    small = hub.add("org/small", model__gguf=noise(30_000))
    large = hub.add("org/large", big__gguf=noise(4_000_000))
    hub.fault("big.gguf", bytes_per_s=100_000)
    agent = make_agent(HF_ENDPOINT=hub.url, DOCKER_HOST=docker_engine.address, MIN_FREE_DISK_GB="0")
    agent.start()
    pull = {"source": "huggingface", "source_uri": small, "model_id": "org/small"}
    assert agent.post("/models/pull", pull).status_code == 200
    pull = {"source": "huggingface", "source_uri": large, "model_id": "org/large"}
    pulling = Thread(target=agent.post, args=("/models/pull", pull), daemon=True)
    pulling.start()
    steps = (shell("prepare", f"echo '{HOSTILE}'"), waiting("train", "echo epoch 1"))
    assert agent.post("/jobs", body("tune", *steps)).status_code == 202

    sign_in(browser, agent)
    browser.wait_for(f"document.getElementById('models').innerText.includes('{small}')", "the model")
    browser.wait_for(
        "document.querySelector('#pulls .facts')?.textContent.includes('downloading')", "the pull's progress"
    )
    browser.click("#jobs summary")
    browser.wait_for("document.getElementById('jobs').textContent.includes('epoch 1')", "the step's line")
    assert HOSTILE in browser.text("#jobs pre")
    assert browser.evaluate("document.querySelectorAll('#jobs :is(img, b)').length") == 0
    chips = browser.evaluate("[...document.querySelectorAll('.steps .chip')].map((chip) => chip.textContent)")
    assert chips == ["completed", "running"]
    pictures(browser, "work")

    browser.click("#pulls button")
    browser.click("#confirm-yes")
    browser.wait_for("document.querySelectorAll('#pulls li').length === 0", "the pull to be gone")
    assert agent.get("/models/pulls").json() == []
    browser.click('#jobs button[aria-label="Cancel job tune"]')
    browser.click("#confirm-yes")
    browser.wait_for("document.querySelectorAll('#jobs > li').length === 0", "the job to be gone")
    assert agent.get("/jobs").json() == []
    assert browser.errors == []
    pulling.join(30)
    hub.end()
    assert docker_engine.clear() == []


def test_a_wrong_key_is_refused_and_the_right_one_stays_in_the_tab(browser: Browser, agent: Agent):
    browser.open(agent.url + "/ui/")
    browser.wait_for("document.activeElement.id === 'key'", "the focus in the field")
    pictures(browser, "sign-in")
    browser.type("#key", "wrong")
    browser.press("Enter")
    browser.wait_for("document.getElementById('sign-in-error').textContent", "the refusal")
    assert "not accept" in browser.text("#sign-in-error")
    browser.type("#key", agent.key)
    browser.press("Enter")
    browser.wait_for("!document.getElementById('app').hidden", "the page")
    browser.open(agent.url + "/ui/")
    browser.wait_for("!document.getElementById('app').hidden", "the page without asking again")
    assert browser.evaluate("localStorage.length") == 0
    assert browser.evaluate("document.cookie") == ""
    browser.click("#sign-out")
    browser.wait_for("document.activeElement?.id === 'key'", "the form again")
    assert browser.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize("name", ["", *sorted(path.name for path in (ROOT / "solarhost" / "ui").iterdir())])
def test_every_file_comes_without_a_key_under_a_strict_policy(shared_agent: Agent, name: str):
    answer = requests.get(f"{shared_agent.url}/ui/{name}", timeout=30)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    again = requests.get(answer.url, headers={"If-None-Match": answer.headers["ETag"]}, timeout=30)
    assert again.status_code == 304


def test_the_documentation_works_under_a_policy_that_runs_no_other_script(
    browser: Browser, shared_agent: Agent
):
    policy = requests.get(f"{shared_agent.url}/docs", timeout=30).headers["Content-Security-Policy"]
    assert re.search(r"script-src 'self' 'sha256-[^']+';", policy)
    assert "frame-ancestors 'none'" in policy
    assert "connect-src 'self'" in policy
    browser.open(f"{shared_agent.url}/docs?url=https://example.com/evil.json")
    browser.wait_for("document.querySelector('.btn.authorize') !== null", "the button for the key")
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'ran = 1'}))"
    )
    assert browser.evaluate("typeof ran") == "undefined"
    assert [error for error in browser.errors if "inline script" not in error] == []
    addresses = [url for url in browser.requested if not url.startswith((shared_agent.url, "data:"))]
    assert addresses == []


def test_only_files_of_the_page_are_served(shared_agent: Agent):
    moved = requests.get(f"{shared_agent.url}/ui", allow_redirects=False, timeout=30)
    assert (moved.status_code, moved.headers["Location"]) == (302, "ui/")
    for path in ("/ui/nothing.js", "/ui/..%2fapp.py", "/ui/__init__.py"):
        assert requests.get(shared_agent.url + path, timeout=30).status_code == 404


def test_the_package_holds_the_page() -> None:
    assert "ui/*" in (ROOT / "setup.cfg").read_text()
    assert [path for path in Path(ROOT / "solarhost" / "ui").iterdir() if path.is_dir()] == []
