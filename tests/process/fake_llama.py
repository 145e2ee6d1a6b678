#!/usr/bin/env python3
"""A program in the place of `llama-server`, for what the real one can't be made to do.

It takes llama-server's flags and its own, which tests pass as `extra_args`; it answers `/health`,
`/metrics`, `/props`, and `/v1/models` with its pid. At SIGUSR1 it exits with 7.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--never-ready", action="store_true", help="answer 503 for ever")
    parser.add_argument("--silent", action="store_true", help="never listen")
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--grow", action="store_true", help="take more memory while not ready")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument(
        "--fork-twice", action="store_true", help="leave a grandchild in a session of its own"
    )
    parser.add_argument(
        "--leave-group", action="store_true", help="leave a child in the group, ignoring SIGTERM"
    )
    parser.add_argument("--die-after", type=float, help="exit with 7 so many seconds after being ready")
    parser.add_argument("--exit", type=int, help="exit at once with this code")
    parser.add_argument("--fail-first", help="exit with 9 as long as this file does not exist; make it")
    parser.add_argument("--kill-self", action="store_true", help="SIGKILL itself while starting")
    parser.add_argument("--print-environment", action="store_true")
    parser.add_argument("--lines", type=int, default=0, help="print so many numbered lines")
    parser.add_argument("--lines-a-second", type=float, default=0)
    parser.add_argument("--raw", help="print these bytes, written as a Python literal")
    parser.add_argument("--chatter", type=float, help="once ready, print so many numbered lines a second")
    known, _ = parser.parse_known_args()
    return known


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ready_at: float
    never_ready: bool

    def do_GET(self) -> None:
        ready = not self.never_ready and time.monotonic() >= self.ready_at
        if self.path == "/health":
            self.answer(200 if ready else 503, {"status": "ok" if ready else "loading"})
        elif self.path == "/props":
            self.answer(200, {"default_generation_settings": {"n_ctx": 1234}})
        elif self.path == "/v1/models":
            self.answer(200, {"pid": os.getpid()})
        elif self.path == "/metrics":
            self.answer(200, "llamacpp:prompt_tokens_total 5\nllamacpp:tokens_predicted_total 7\n")
        else:
            self.answer(404, {})

    def answer(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # a client that broke off; a traceback would come between the numbered lines


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def die() -> None:
    say("last words")
    os._exit(7)


def leave(ignore_term: bool, own_session: bool) -> None:
    """A child that lives on without its parent."""
    if os.fork() == 0:
        if own_session:
            os.setsid()
            if os.fork() > 0:
                os._exit(0)
        if ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)


def main() -> None:
    options = arguments()
    say("fake server starting")
    if options.exit is not None:
        say("it will not work")
        sys.exit(options.exit)
    if options.fail_first and not Path(options.fail_first).exists():
        Path(options.fail_first).touch()
        sys.exit(9)
    if options.kill_self:
        os.kill(os.getpid(), signal.SIGKILL)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: die())
    if options.fork_twice:
        leave(ignore_term=True, own_session=True)
    if options.leave_group:
        leave(ignore_term=True, own_session=False)
    if options.print_environment:
        say("key " + os.environ["LLAMA_API_KEY"])
    if options.raw:
        sys.stdout.buffer.write(eval(options.raw))
        sys.stdout.flush()
    for number in range(options.lines):
        say(f"line {number}")
        if options.lines_a_second:
            time.sleep(1 / options.lines_a_second)
    if options.silent:
        threading.Event().wait()
    Handler.ready_at = time.monotonic() + options.ready_after
    Handler.never_ready = options.never_ready
    server = Server((options.host, options.port), Handler)
    if options.grow:
        threading.Thread(target=grow, args=(options.ready_after,), daemon=True).start()
    if options.die_after is not None:
        threading.Timer(options.die_after, die).start()
    say("fake server listening")
    if options.chatter:
        threading.Thread(target=chatter, args=(options.chatter,), daemon=True).start()
    server.serve_forever()


def chatter(lines_a_second: float) -> None:
    began = time.monotonic()
    said = 0
    while True:
        due = int((time.monotonic() - began) * lines_a_second)
        if due > said:
            sys.stdout.write("".join(f"chatter {number}\n" for number in range(said, due)))
            sys.stdout.flush()
            said = due
        time.sleep(0.02)


def grow(seconds: float) -> None:
    kept = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        kept.append(bytearray(os.urandom(1 << 20)) * 4)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
