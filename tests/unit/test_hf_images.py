"""Images by address: only public ones, by no detour, and not without end."""

import io
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from PIL import Image

from hf_server import images
from hf_server.errors import BadRequest
from hf_server.images import ImageLoader, RequestImages


def loader(resolve: Callable[[str], list[str]] = lambda _: ["127.0.0.1"]) -> ImageLoader:
    return ImageLoader(allow_urls=True, resolve=resolve)


@pytest.fixture
def address(monkeypatch):
    """A web server on loopback, which counts as public here; `{address}/<kind>`."""
    monkeypatch.setattr(images, "_is_public", lambda address: address == "127.0.0.1")
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(buffer, "PNG")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = self.path.strip("/")
            self.send_response({"image": 200, "large": 200, "absent": 404, "endless": 200}.get(kind, 302))
            targets = {
                "loop": "/loop",
                "inside": "http://169.254.169.254/latest",
                "file": "file:///etc/passwd",
            }
            if kind in targets:
                self.send_header("Location", targets[kind])
            self.end_headers()
            while kind == "endless":
                self.wfile.write(b"x")
                time.sleep(0.01)
            self.wfile.write(b"x" * (images.MAX_BYTES + 1) if kind == "large" else buffer.getvalue())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://pictures.example:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_public_image_is_fetched(address):
    assert loader().load(f"{address}/image", "image").size == (3, 2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("large", "more than"),
        ("absent", "status 404"),
        ("loop", "redirects more than"),
        ("inside", "private, local or unknown"),
        ("file", "must be an http"),
    ],
)
def test_what_may_not_be_fetched(address, kind, words):
    def resolve(host: str) -> list[str]:
        return [host] if host[0].isdigit() else ["127.0.0.1"]

    with pytest.raises(BadRequest, match=words):
        loader(resolve).load(f"{address}/{kind}", "image")


def test_an_image_that_never_ends_is_given_up(address, monkeypatch):
    monkeypatch.setattr(images, "_BODY_S", 0.1)
    with pytest.raises(BadRequest, match="did not come within"):
        loader().load(f"{address}/endless", "image")


@pytest.mark.parametrize(
    "ip",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *(
            "64:ff9b::a00:1",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
            "::7f00:1",
            "::ffff:0:7f00:1",
            "192.88.99.1",
        ),
        *("fec0::1", "3fff::1", "5f00::1", "2001:db8::1", "240.0.0.1", "255.255.255.255", "::"),
        *("224.0.0.1", "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    ],
)
def test_private_addresses_are_refused(ip):
    with pytest.raises(BadRequest, match="private, local or unknown"):
        loader(lambda _: [ip]).load("http://pictures.example/x.png", "image")


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost", "[::1]", "[::ffff:7f00:1]"),
        *("169.254.43518", "\N{FULLWIDTH DIGIT ONE}27.0.0.1", "127\N{IDEOGRAPHIC FULL STOP}0.0.1"),
        *("public.example@127.0.0.1", "127.0.0.1#public.example", "127.0.0.1\\@public.example"),
    ],
)
def test_no_spelling_of_a_local_address_is_fetched(host):
    with pytest.raises(BadRequest, match=r"private, local or unknown|can't be fetched"):
        ImageLoader(allow_urls=True).load(f"http://{host}/x.png", "image")


def test_public_addresses_are_public():
    for address in ("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"):
        assert images._is_public(address)


def test_one_private_address_among_public_ones_is_refused():
    with pytest.raises(BadRequest, match="private, local or unknown"):
        loader(lambda _: ["93.184.216.34", "127.0.0.1"]).load("https://pictures.example/x.png", "image")


def test_an_unknown_host_is_refused():
    with pytest.raises(BadRequest, match="private, local or unknown"):
        loader(lambda _: []).load("https://pictures.example/x.png", "image")


def test_urls_are_off_unless_allowed():
    with pytest.raises(BadRequest, match="fetches no addresses"):
        ImageLoader(allow_urls=False).load("https://pictures.example/x.png", "image")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(BadRequest, match="can't be fetched"):
        loader().load("http://[", "image")


def test_the_images_of_a_request_are_bounded_together(address, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS_TOGETHER", 15)
    request = RequestImages(loader())
    for _ in range(2):  # of 3 x 2 pixels
        request.load(f"{address}/image", "image")
    with pytest.raises(BadRequest, match="15 of all images of a request together"):
        request.load(f"{address}/image", "image")


def test_too_many_images_are_refused_before_they_are_loaded(address, monkeypatch):
    monkeypatch.setattr(images, "MAX_IMAGES", 1)
    request = RequestImages(loader())
    request.load(f"{address}/image", "image")
    with pytest.raises(BadRequest, match="at most 1 images"):
        request.load("not even an address", "image")
