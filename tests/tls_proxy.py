"""TLS in front of a plain server on this machine, as a reverse proxy does it."""

import asyncio
import ssl
import subprocess
import threading
from pathlib import Path


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that no authority knows, and its key: paths of the two files."""
    certificate, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=control "
        f"-addext subjectAltName=IP:127.0.0.1 -out {certificate} -keyout {key}".split(),
        check=True,
        capture_output=True,
    )
    return certificate, key


class TlsProxy:
    """Forwards bytes both ways, in one event loop of its own, until `close`."""

    def __init__(self, target_port: int, certificate: tuple[str, str]):
        self._target_port = target_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-proxy", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._server.close()
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
