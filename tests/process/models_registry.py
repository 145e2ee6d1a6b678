"""A real OCI registry on loopback: Debian's `docker-registry`, with TLS by a private CA and token login.

`Front` hands out its tokens, and can stand before it as a proxy that puts faults into answers.
"""

import base64
import hashlib
import io
import json
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import requests

from contrib.setup.system import find_program
from tests.agent import free_port
from tests.process.models_faults import Content, Fault, Handler, Server, wait_for

USER, PASSWORD = "puller", "right-password"
SERVICE, ISSUER = "test-registry", "test-tokens"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Authority:
    """A private CA, and a server certificate for 127.0.0.1 by it."""

    def __init__(self, folder: Path):
        self.ca, self.certificate, self.key = (
            folder / name for name in ("ca.pem", "server.pem", "server.key")
        )
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
        fresh = ["req", "-newkey", "rsa:2048", "-nodes", "-keyout"]
        self._run(
            [*fresh, "ca.key", "-x509", "-days", "9", "-subj", "/CN=Private CA", "-out", "ca.pem"], folder
        )
        self._run([*fresh, "server.key", "-subj", "/CN=127.0.0.1", "-out", "server.csr"], folder)
        sign = ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
        self._run([*sign, "-days", "9", "-extfile", "san", "-out", "server.pem"], folder)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, self.key)

    def token(self, access: Sequence[Mapping[str, object]]) -> str:
        """A signed JWT, as the registry wants it."""
        now = int(time.time())
        der = base64.b64encode(ssl.PEM_cert_to_DER_cert(self.certificate.read_text())).decode()
        header = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        claims = {
            "iss": ISSUER,
            "sub": USER,
            "aud": SERVICE,
            "exp": now + 300,
            "nbf": now - 60,
            "iat": now,
            "jti": uuid4().hex,
            "access": list(access),
        }
        text = b".".join(_base64url(json.dumps(part).encode()) for part in (header, claims))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(command, input=text, capture_output=True, check=True).stdout
        return (text + b"." + _base64url(signature)).decode()

    @staticmethod
    def _run(arguments: list[str], folder: Path) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Front(Server):
    """`/token`, and everything else from the registry behind it."""

    def __init__(self, authority: Authority):
        self.authority = authority
        self.basic = False  # ask for the password itself, as a registry with htpasswd does
        self.upstream = ""
        super().__init__(authority.context)
        self.url = f"https://127.0.0.1:{self.port}"

    def answer(self, handler: Handler) -> None:
        parts = urlsplit(handler.path)
        login = handler.headers.get("Authorization", "")
        password = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if parts.path == "/token":
            scope = parse_qs(parts.query).get("scope", [""])[0]
            if login != password:
                handler.reply(401, {})
                return
            kind, name, actions = scope.split(":")
            access = [{"type": kind, "name": name, "actions": actions.split(",")}]
            body = json.dumps({"token": self.authority.token(access)}).encode()
            handler.reply(200, {"Content-Type": "application/json"}, body)
        elif self.basic and login != password:
            handler.reply(401, {"Www-Authenticate": 'Basic realm="Registry Realm"'})
        else:
            self._pass_on(handler, parts.path)

    def _pass_on(self, handler: Handler, path: str) -> None:
        headers = {
            name: handler.headers[name] for name in ("Accept", "Authorization") if handler.headers[name]
        }
        if self.basic:
            name = path.removeprefix("/v2/").rsplit("/", 2)[0]
            access = [{"type": "repository", "name": name, "actions": ["pull"]}]
            headers["Authorization"] = f"Bearer {self.authority.token(access)}"
        answer = requests.get(
            self.upstream + path, headers=headers, verify=str(self.authority.ca), timeout=20
        )
        kept = ("Content-Type", "Docker-Content-Digest", "Www-Authenticate")
        passed = {name: answer.headers[name] for name in kept if name in answer.headers}
        if answer.status_code == 200:
            handler.send_content(Content(answer.content), passed)
        else:
            handler.reply(answer.status_code, passed, answer.content)


class Registry:
    """The registry, its token server, and pushing into it."""

    def __init__(self, folder: Path):
        self.authority = Authority(folder)
        self.front = Front(self.authority)
        port = free_port()
        self.host = f"127.0.0.1:{port}"
        self.url = self.front.upstream = f"https://{self.host}"
        config = {
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {
                "addr": self.host,
                "tls": {"certificate": str(self.authority.certificate), "key": str(self.authority.key)},
            },
            "auth": {
                "token": {
                    "realm": f"{self.front.url}/token",
                    "service": SERVICE,
                    "issuer": ISSUER,
                    "rootcertbundle": str(self.authority.ca),
                }
            },
        }
        (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
        program = find_program("docker-registry")
        assert program, "docker-registry is missing"
        with (folder / "registry.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
            )
        wait_for(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            return (
                requests.get(f"{self.url}/v2/", verify=str(self.authority.ca), timeout=5).status_code == 401
            )
        except requests.ConnectionError:
            return False

    def push(
        self, name: str, files: Sequence[tuple[str | None, bytes | Path]], media_type: str = "a/b"
    ) -> str:
        """Make `name:v1` of layers with these titles; return the digest of its manifest."""
        layers = []
        for title, data in files:
            digest, size = self._upload(name, data)
            annotations = {} if title is None else {"org.opencontainers.image.title": title}
            layers.append(
                {"mediaType": media_type, "digest": digest, "size": size, "annotations": annotations}
            )
        config, _ = self._upload(name, b"{}")
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": config, "size": 2},
            "layers": layers,
        }
        return self.put_manifest(name, json.dumps(manifest).encode())

    def put_manifest(self, name: str, body: bytes) -> str:
        url = f"{self.url}/v2/{name}/manifests/v1"
        headers = self._login(name) | {"Content-Type": MANIFEST}
        requests.put(
            url, data=body, headers=headers, verify=str(self.authority.ca), timeout=20
        ).raise_for_status()
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    def fault(self, path: str, **how: object) -> None:
        self.front.faults.add(Fault(path, **how))  # type: ignore[arg-type]

    def end(self) -> None:
        self.front.end()
        self._process.kill()
        self._process.wait()

    def _upload(self, name: str, data: bytes | Path) -> tuple[str, int]:
        """Digest and size of the new blob."""
        with data.open("rb") if isinstance(data, Path) else io.BytesIO(data) as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            common = {"headers": self._login(name), "verify": str(self.authority.ca), "timeout": 60}
            begun = requests.post(f"{self.url}/v2/{name}/blobs/uploads/", **common)  # type: ignore[arg-type]
            begun.raise_for_status()
            place = f"{begun.headers['Location']}&digest={digest}"
            requests.put(place, data=file, **common).raise_for_status()  # type: ignore[arg-type]
        return digest, size

    def _login(self, name: str) -> dict[str, str]:
        access = [{"type": "repository", "name": name, "actions": ["pull", "push"]}]
        return {"Authorization": f"Bearer {self.authority.token(access)}"}


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
