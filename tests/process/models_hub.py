"""A hub on loopback: enough of the HuggingFace Hub's protocol for the real `huggingface_hub` client.

Large files (LFS) are answered with a redirect to a second server with signed addresses, as the hub does.
"""

import json
from urllib.parse import parse_qs, urlsplit

from tests.process.models_faults import Content, Fault, Handler, Server

COMMIT = "c0ffee" + "0" * 34


class Storage(Server):
    """Where the redirects lead. An address is valid as long as its signature is."""

    def __init__(self) -> None:
        self.contents: dict[str, Content] = {}
        self.valid: set[str] = set()
        super().__init__()

    def answer(self, handler: Handler) -> None:
        parts = urlsplit(handler.path)
        if parse_qs(parts.query).get("sig", [""])[0] not in self.valid:
            handler.reply(403, {}, b"expired")
            return
        content = self.contents[parts.path.rsplit("/", 1)[-1]]
        handler.send_content(content, {"ETag": f'"{content.sha256}"', "Accept-Ranges": "bytes"})


class Hub(Server):
    """`repos[model_id][name] = content`; a name that ends with .txt or .json is a small git file."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Content]] = {}
        self.gated: set[str] = set()
        self.token = "hf_right"
        self.expired = 0  # so many of the next addresses have run out already
        self._signatures = 0
        self.storage = Storage()
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def add(self, model_id: str, **files: Content) -> str:
        self.repos[model_id] = {name.replace("__", "."): content for name, content in files.items()}
        return f"huggingface://{model_id}"

    def reset(self) -> None:
        self.repos.clear()
        self.gated.clear()
        self.expired = 0
        for server in (self, self.storage):
            server.faults.clear()

    def fault(self, path: str, **how: object) -> None:
        """Of the hub itself for paths of its interface, else of the storage behind it."""
        server = self if "/" in path else self.storage
        server.faults.add(Fault(path, **how))  # type: ignore[arg-type]

    def end(self) -> None:
        self.storage.end()
        super().end()

    def answer(self, handler: Handler) -> None:
        path = urlsplit(handler.path).path
        login = handler.headers.get("Authorization", "")
        if login and login != f"Bearer {self.token}":
            handler.reply(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path.startswith("/api/models/"):
            model_id, _, rest = path.removeprefix("/api/models/").partition("/tree/")
            self._answer_api(handler, model_id.partition("/revision/")[0], bool(rest))
        else:
            model_id, _, rest = path.removeprefix("/").partition("/resolve/")
            self._answer_file(handler, model_id, rest.partition("/")[2], bool(login))

    def _answer_api(self, handler: Handler, model_id: str, tree: bool) -> None:
        files = self.repos.get(model_id)
        if files is None:
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            handler.reply(404, headers)
            return
        rows = []
        for name, content in files.items():
            row = {"type": "file", "oid": content.git, "size": content.size, "path": name}
            if is_large(name):
                row["lfs"] = {"oid": content.sha256, "size": content.size, "pointerSize": 130}
            rows.append(row)
        body: object = rows
        if not tree:
            siblings = [
                {
                    "rfilename": row["path"],
                    "size": row["size"],
                    "blobId": row["oid"],
                    **({"lfs": {"sha256": row["lfs"]["oid"], **row["lfs"]}} if "lfs" in row else {}),  # type: ignore[dict-item,index]
                }
                for row in rows
            ]
            body = {"id": model_id, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
        handler.reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _answer_file(self, handler: Handler, model_id: str, name: str, known: bool) -> None:
        if model_id in self.gated and not known:
            handler.reply(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        content = self.repos.get(model_id, {}).get(name)
        if content is None:
            handler.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not is_large(name):
            handler.send_content(content, headers | {"ETag": f'"{content.git}"'})
            return
        self._signatures += 1
        signature = f"{self._signatures}secret"
        if self.expired:
            self.expired -= 1
        else:
            self.storage.valid.add(signature)
        self.storage.contents[content.sha256] = content
        location = f"http://127.0.0.1:{self.storage.port}/{name}/{content.sha256}?sig={signature}"
        linked = {"X-Linked-Size": str(content.size), "X-Linked-ETag": f'"{content.sha256}"'}
        handler.reply(302, headers | linked | {"Location": location})


def is_large(name: str) -> bool:
    return not name.endswith((".txt", ".json"))
