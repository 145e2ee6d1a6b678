"""A real Chromium without a screen, driven over its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.agent import wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
STARTED_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 60.0


class Browser:
    """One tab. Notes every address that the page asked for and everything that went wrong in it."""

    def __init__(self, endpoint: str, screenshots: Path):
        self._socket = websocket.create_connection(endpoint, timeout=ANSWERS_WITHIN_S)
        self._screenshots = screenshots
        self._last_id = 0
        self.requested: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; what happens until it is answered is noted."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self._note(message.get("method"), message.get("params", {}))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'", "the page")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_for(self, expression: str, what: str, timeout_s: float = 30) -> Any:
        try:
            return wait_until(lambda: self.evaluate(expression), timeout_s, what)
        except AssertionError as error:
            self.screenshot("failed")
            text = self.evaluate("document.body.innerText")[:3000]
            raise AssertionError(f"{error}\n{self.errors}\n{text}") from None

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """A real click in the middle of the first element that fits."""
        where = self.wait_for(_MIDDLE % json.dumps(selector), f"{selector} to be there for a click")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def type(self, selector: str, text: str) -> None:
        """Type into a field in place of what it holds."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{field}.focus(), {field}.select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.press("Backspace")

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "Backspace": 8}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **text,
            )

    def size(self, width: int, height: int = 1000) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 800,
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, name: str) -> None:
        self._screenshots.mkdir(parents=True, exist_ok=True)
        data = self.call("Page.captureScreenshot")["data"]
        (self._screenshots / f"{name}.png").write_bytes(base64.b64decode(data))

    def _note(self, method: str | None, happened: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(happened["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requested.append(happened["url"])
        elif method == "Runtime.exceptionThrown":
            details = happened["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and happened["entry"]["source"] in (
            "security",
            "violation",
            "javascript",
        ):
            self.errors.append(happened["entry"]["text"])


# Where to click, once it has stayed there for a moment: what is above it may still be loading.
_MIDDLE = """(async () => {
  const measure = () => {
    const node = [...document.querySelectorAll(%s)].find((found) => found.getClientRects().length);
    if (!node || node.disabled) return null;
    node.scrollIntoView({block: "center"});
    const box = node.getBoundingClientRect();
    const at = {x: box.x + box.width / 2, y: box.y + box.height / 2};
    return node.contains(document.elementFromPoint(at.x, at.y)) ? at : null;
  };
  const first = measure();
  await new Promise((resolve) => setTimeout(resolve, 100));
  const again = measure();
  return first && again && first.x === again.x && first.y === again.y ? again : null;
})()"""


@contextmanager
def running_browser(profile: Path, screenshots: Path) -> Iterator[Browser]:
    """A browser with an empty profile in that folder."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail(
            "the tests of the page run a real Chromium: run `make setup`, or install Debian's chromium"
        )
    with (profile.parent / "chromium.log").open("wb") as output:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        browser = Browser(_page_endpoint(profile, process), screenshots)
        yield browser
        browser.close()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _page_endpoint(profile: Path, process: "subprocess.Popen[bytes]") -> str:
    ready = profile / "DevToolsActivePort"
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not (ready.exists() and ready.read_text().count("\n") >= 1):
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        assert time.monotonic() < deadline, "chromium did not start"
        time.sleep(0.05)
    port, path = ready.read_text().splitlines()[:2]
    browser = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=ANSWERS_WITHIN_S)
    browser.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
    targets = json.loads(browser.recv())["result"]["targetInfos"]
    browser.close()
    page = next(target for target in targets if target["type"] == "page")
    return f"ws://127.0.0.1:{port}/devtools/page/{page['targetId']}"
