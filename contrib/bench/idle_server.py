"""Stands in for a `llama-server` that has nothing to do: ready at once, constant metrics."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = {
    "/health": (b'{"status":"ok"}', "application/json"),
    "/props": (b'{"default_generation_settings":{"n_ctx":4096}}', "application/json"),
    "/slots": (b"[]", "application/json"),
    "/metrics": (
        b"llamacpp:prompt_tokens_total 0\n"
        b"llamacpp:tokens_predicted_total 0\n"
        b"llamacpp:requests_processing 0\n"
        b"llamacpp:requests_deferred 0\n",
        "text/plain",
    ),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body, kind = ANSWERS.get(self.path, (b"", "text/plain"))
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


port = int(sys.argv[sys.argv.index("--port") + 1])
host = sys.argv[sys.argv.index("--host") + 1]
ThreadingHTTPServer((host, port), Handler).serve_forever()
