"""Pictures from data URIs and, where allowed, from public addresses; bounded in bytes and in pixels."""

import base64
import io
import ipaddress
import socket
import time
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

from PIL import Image, ImageOps, UnidentifiedImageError
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, Timeout
from urllib3.exceptions import HTTPError

from hf_server.errors import BadRequest

MAX_IMAGES = 32  # of one request
MAX_BYTES = 10 * 1024 * 1024
MAX_PIXELS = 40_000_000
MAX_PIXELS_TOGETHER = 100_000_000  # of one request; each takes three bytes of memory
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_TIMEOUT = Timeout(connect=5, read=10)
_BODY_S = 30.0  # however steadily it comes
_REDIRECTS = 3
_CHUNK = 65536
# All that is public in IPv6 (RFC 4291), but for documentation, and for addresses of IPv4 inside, which a
# gateway may lead into the private network behind it. The latter's relays are in IPv4's own space.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = [ipaddress.ip_network(text) for text in ("3fff::/20", "2002::/16", "192.88.99.0/24")]

Resolve = Callable[[str], list[str]]


class ImageLoader:
    """Loads the images of a request. Safe from any thread.

    Args:
        allow_urls: fetch http(s) addresses; data URIs are always taken.
        resolve: the addresses of a host name.
    """

    def __init__(self, *, allow_urls: bool, resolve: Resolve | None = None):
        self._allow_urls = allow_urls
        self._resolve = resolve or _addresses

    def load(self, address: str, param: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """The picture behind a data URI or URL, upright, in RGB.

        Raises:
            BadRequest: it is too large, damaged, of an unknown kind, or may not be fetched.
        """
        return decode(self._bytes(address, param), param, max_pixels)

    def _bytes(self, address: str, param: str) -> bytes:
        if address.startswith("data:"):
            return _data(address, param)
        if not address.lower().startswith(("http://", "https://")):
            raise BadRequest(f"'{param}' must be a data URI or an http(s) address", param)
        if not self._allow_urls:
            raise BadRequest("this server takes images as data URIs only; it fetches no addresses", param)
        return self._fetch(address, param)

    def _fetch(self, address: str, param: str) -> bytes:
        for _ in range(_REDIRECTS + 1):
            try:
                with self._get(address, param) as response:
                    target = response.get_redirect_location()
                    if not target:
                        return _read(response, param)
                    address = urljoin(address, target)
            except (HTTPError, OSError, ValueError) as error:
                raise BadRequest(f"'{param}' can't be fetched: {error}", param) from error
        raise BadRequest(f"'{param}' redirects more than {_REDIRECTS} times", param)

    def _get(self, address: str, param: str) -> HTTPResponse:
        """Connect to the very address that was checked, so that a second look-up can't lead elsewhere."""
        parts = urlsplit(address)
        host = parts.hostname
        if parts.scheme not in ("http", "https") or not host:
            raise BadRequest(f"'{param}' must be an http(s) address", param)
        found = self._resolve(host)
        if not found or not all(_is_public(ip) for ip in found):
            raise BadRequest(f"'{param}' names a private, local or unknown address; it is not fetched", param)
        pool: HTTPConnectionPool
        if parts.scheme == "https":
            pool = HTTPSConnectionPool(
                found[0], parts.port or 443, timeout=_TIMEOUT, assert_hostname=host, server_hostname=host
            )
        else:
            pool = HTTPConnectionPool(found[0], parts.port or 80, timeout=_TIMEOUT)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        response = pool.urlopen(
            "GET",
            path,
            headers={"Host": parts.netloc, "Accept-Encoding": "identity"},
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,  # a few bytes could become many
        )
        if not isinstance(response, HTTPResponse):
            raise BadRequest(f"'{param}' can't be fetched", param)
        return response


class RequestImages:
    """The images of one request, loaded one by one: never too many, nor too many pixels together.

    Without a loader, for a model that reads text only, each is refused.
    """

    def __init__(self, loader: ImageLoader | None):
        self._loader = loader
        self._count = 0
        self._pixels = 0

    def load(self, address: str, param: str) -> Image.Image:
        """The next picture; see `ImageLoader.load`. Raises BadRequest."""
        if self._loader is None:
            raise BadRequest("this model reads text only; it can't take images", param)
        self._count += 1
        if self._count > MAX_IMAGES:
            raise BadRequest(f"at most {MAX_IMAGES} images are taken", param)
        left = MAX_PIXELS_TOGETHER - self._pixels
        picture = self._loader.load(address, param, min(MAX_PIXELS, left))
        self._pixels += picture.width * picture.height
        return picture


def decode(data: bytes, param: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in `data`; its size is checked from the header, before any pixel is unpacked."""
    if len(data) > MAX_BYTES:
        raise BadRequest(
            f"the image in '{param}' has {len(data)} bytes; at most {MAX_BYTES} are taken", param
        )
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        width, height = picture.size
        if width * height > max_pixels:
            raise BadRequest(
                f"the image in '{param}' has {width}x{height} pixels; at most {MAX_PIXELS} are taken, "
                f"and {MAX_PIXELS_TOGETHER} of all images of a request together",
                param,
            )
        picture.load()
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Image.DecompressionBombError as error:
        raise BadRequest(f"the image in '{param}' has more than {MAX_PIXELS} pixels", param) from error
    except UnidentifiedImageError as error:
        kinds = ", ".join(_FORMATS)
        raise BadRequest(f"'{param}' holds no image of a known kind ({kinds})", param) from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadRequest(f"the image in '{param}' is damaged: {error}", param) from error


def _data(address: str, param: str) -> bytes:
    head, comma, payload = address.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadRequest(f"'{param}' must be of the form data:image/...;base64,...", param)
    if len(payload) > MAX_BYTES * 4 // 3 + 4:
        size = len(payload) * 3 // 4
        raise BadRequest(f"the image in '{param}' has {size} bytes; at most {MAX_BYTES} are taken", param)
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError as error:
        raise BadRequest(f"'{param}' is not valid base64: {error}", param) from error


def _read(response: HTTPResponse, param: str) -> bytes:
    if response.status != 200:
        raise BadRequest(f"'{param}' can't be fetched: the answer has status {response.status}", param)
    data = bytearray()
    deadline = time.monotonic() + _BODY_S
    while chunk := response.read1(_CHUNK):
        data += chunk
        if time.monotonic() > deadline:
            raise BadRequest(f"'{param}' did not come within {_BODY_S:g} s", param)
        if len(data) > MAX_BYTES:
            raise BadRequest(f"the image in '{param}' has more than {MAX_BYTES} bytes", param)
    return bytes(data)


def _addresses(host: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)
