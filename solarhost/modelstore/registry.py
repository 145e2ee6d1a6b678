"""Artifacts of an OCI registry: oras for references, addresses and login, ranges by ourselves.

oras (0.2) opens the target of a blob for writing from its start, so it resumes nothing, and it sleeps
two minutes over a wrong password; its request function is used without those retries.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import oras.auth
import oras.container
import oras.defaults
import oras.provider
import requests
import urllib3.exceptions

from solarhost import strictjson
from solarhost.modelstore.failures import DigestMismatch, Interrupted, PullError
from solarhost.modelstore.remote import Listing, RemoteFile
from solarhost.modelstore.transport import bound, broken, check
from solarhost.net import is_loopback

MANIFEST_MAX_BYTES = 4 << 20  # what the distribution specification asks registries to accept
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_request: Callable[..., requests.Response] = oras.provider.Registry.do_request.__wrapped__


class Registry:
    """One artifact, at the manifest that its listing read."""

    def __init__(self, reference: str, *, url: str, username: str, password: str, stall_s: float):
        """`url` is the registry that the login belongs to; a reference may name another one."""
        configured = urlsplit(url if "//" in url else f"https://{url}")
        self._container = oras.container.Container(reference, registry=configured.netloc)
        if not url and self._container.registry == oras.defaults.registry.index_name:
            raise PullError(
                "credentials_missing", f"{reference!r} names no registry, and HARBOR_URL is not set"
            )
        own = self._container.registry == configured.netloc
        plain = own and configured.scheme == "http"
        if plain and not is_loopback(configured.hostname or ""):
            raise PullError("model_pull_failed", "HARBOR_URL is plain HTTP, which only loopback may be")
        self._login = (username, password) if own and username and password else None
        self._client = oras.provider.Registry(insecure=plain)
        if self._login:
            self._client.auth.set_basic_auth(*self._login)
        bound(self._client.session, stall_s).hooks["response"].append(self._note)
        self._stall_s = stall_s
        self._last = requests.Response()

    def listing(self) -> Listing:
        with self._get(self._container.manifest_url(), {"Accept": ", ".join(_MANIFEST_TYPES)}) as response:
            try:
                body = response.raw.read(MANIFEST_MAX_BYTES + 1, decode_content=True)
            except urllib3.exceptions.HTTPError as error:
                raise broken(error, self._stall_s) from error
        revision = f"sha256:{hashlib.sha256(body).hexdigest()}"
        announced = self._container.digest or response.headers.get("Docker-Content-Digest", revision)
        if announced != revision:
            raise DigestMismatch(f"the manifest that came is {revision}, not {announced}")
        return Listing(revision, files_of_manifest(body))

    def open(self, file: RemoteFile, start: int, end: int) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if (start, end) != (0, file.size):
            headers["Range"] = f"bytes={start}-{end - 1}"
        return self._get(self._container.get_blob_url(file.digest), headers)

    def _get(self, address: str, headers: Mapping[str, str]) -> requests.Response:
        url = f"{self._client.prefix}://{address}"
        try:
            response = _request(self._client, url, headers=dict(headers), stream=True)
            if response.status_code == 401 and getattr(self._client.auth, "token", None):
                self._client.auth.token = None  # it ran out during a long download: ask for another
                response = _request(self._client, url, headers=dict(headers), stream=True)
        except requests.RequestException as error:
            raise broken(error, self._stall_s) from error
        except ValueError as error:  # how oras says that the registry or its token server refused us
            response = self._last
            if response.ok:
                raise Interrupted("the token server gave no token") from error
        if response.status_code in (401, 403) and not response.history and not self._login:
            raise PullError(
                "credentials_missing",
                f"{self._container.registry} asks for a login: set HARBOR_URL to it, "
                "HARBOR_USERNAME and HARBOR_PASSWORD",
            )
        check(response)
        return response

    def _note(self, response: requests.Response, *_args: Any, **_kwargs: Any) -> None:
        """Keep the last answer, which oras hides, and log in the way that the registry asks for."""
        self._last = response
        challenge = response.headers.get("Www-Authenticate", "")
        if response.status_code == 401 and challenge.lower().startswith("basic") and self._login:
            self._client.auth = oras.auth.get_auth_backend("basic", self._client.session)
            self._client.auth.set_basic_auth(*self._login)


def files_of_manifest(body: bytes) -> list[RemoteFile]:
    """The layers of a manifest as files: named by their title, whatever their media type says."""
    try:
        manifest = strictjson.parse(body)
        if "manifests" in manifest:
            raise PullError(
                "model_pull_failed", "the reference names an index of images, not an artifact", status=502
            )
        files = []
        for layer in manifest["layers"]:
            title = (layer.get("annotations") or {}).get(oras.defaults.annotation_title)
            if title is not None:  # else it is no file; the oras command line skips it too
                files.append(RemoteFile(title, layer["size"], str(layer["digest"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PullError("model_pull_failed", f"the manifest can't be read: {error!r}", status=502) from error
    return files
