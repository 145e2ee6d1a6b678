"""Stands in for a `llama-server` that has nothing to do: ready at once, constant metrics.

Hundreds of it start in one measurement, so it imports little.
"""

import sys
from socketserver import StreamRequestHandler, ThreadingTCPServer

JSON, TEXT = b"application/json", b"text/plain"
ANSWERS = {
    b"/health": (b'{"status":"ok"}', JSON),
    b"/props": (b'{"default_generation_settings":{"n_ctx":4096}}', JSON),
    b"/slots": (b"[]", JSON),
    b"/metrics": (
        b"llamacpp:prompt_tokens_total 0\n"
        b"llamacpp:tokens_predicted_total 0\n"
        b"llamacpp:requests_processing 0\n"
        b"llamacpp:requests_deferred 0\n",
        TEXT,
    ),
}


class Handler(StreamRequestHandler):
    def handle(self) -> None:
        """Requests of one connection, until the client closes it; they have no bodies."""
        while request := self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            body, kind = ANSWERS.get(request.split()[1], (b"", TEXT))
            status = b"200 OK" if body else b"404 Not Found"
            head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
            self.wfile.write(head % (status, kind, len(body)) + body)


class Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


port = int(sys.argv[sys.argv.index("--port") + 1])
host = sys.argv[sys.argv.index("--host") + 1]
Server((host, port), Handler).serve_forever()
