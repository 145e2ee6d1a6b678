"""The operator page, as whoever drives a browser uses it."""

import json

from tests.agent import Agent
from tests.browser import Browser


def create(agent: Agent, alias: str, *args: str) -> str:
    """An instance of the scripted server with these arguments; returns its id."""
    weights = agent.folder / "weights.gguf"
    weights.touch()
    return agent.create(
        {"backend_type": "llamacpp", "alias": alias, "model": str(weights), "extra_args": list(args)}
    )


def sign_in(browser: Browser, agent: Agent) -> None:
    browser.open(agent.url + "/ui/")
    browser.wait_for("document.getElementById('key').offsetParent !== null", "the form")
    browser.type("#key", agent.key)
    browser.press("Enter")
    browser.wait_for("!document.getElementById('app').hidden", "the page behind the form")


def row(instance_id: str) -> str:
    return f'[data-id="{instance_id}"]'


def button(instance_id: str, verb: str) -> str:
    return f'{row(instance_id)} button[aria-label^="{verb} "]'


def wait_for_status(browser: Browser, instance_id: str, status: str) -> None:
    browser.wait_for(
        f"document.querySelector('{row(instance_id)} .chip')?.textContent === '{status}'",
        f"{status} on the page",
    )


def wait_for_line(browser: Browser, text: str) -> None:
    browser.wait_for(
        f"document.getElementById('log-lines').textContent.includes({json.dumps(text)})",
        f"{text!r} in the log",
    )
