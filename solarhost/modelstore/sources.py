"""Source URIs: where a model comes from, and the folder name that it gets."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from solarhost.errors import InvalidRequest

_REPO = re.compile(r"repo://([A-Za-z0-9_-]{1,128}):([A-Za-z0-9_.-]{1,128})(?:/(.*))?", re.ASCII | re.DOTALL)
_HUB = re.compile(r"huggingface://((?:[\w.-]{1,96}/)?[\w.-]{1,96})", re.ASCII)
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


class Scheme(StrEnum):
    REPO = "repo"
    HUB = "huggingface"
    LOCAL = "local"


class MalformedSource(InvalidRequest):
    """A source URI that can't be read."""

    def __init__(self, uri: str, why: str):
        super().__init__(f"model source {uri!r}: {why}", {"model_source": [why]})
        self.uri = uri


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed source URI."""

    scheme: Scheme
    uri: str  # as it came
    key: str  # without the subpath: what the manifest is keyed by
    slug: str  # folder in the models folder; empty for local://
    subpath: str  # a file inside the artifact, or the path of local://; may be empty


def parse_source(uri: str) -> Source:
    """Read `repo://name:version[/subpath]`, `huggingface://org/model` or `local://path`.

    Raises:
        MalformedSource: it is none of these, or its path would leave the model's folder.
    """
    if match := _REPO.fullmatch(uri):
        name, version, subpath = match.groups()
        if version.strip(".") == "":
            raise MalformedSource(uri, "the version is only dots")
        if subpath and (why := unsafe_path(subpath)):
            raise MalformedSource(uri, f"its subpath {why}")
        return Source(Scheme.REPO, uri, f"repo://{name}:{version}", f"repo--{name}--{version}", subpath or "")
    if match := _HUB.fullmatch(uri):
        model_id = match[1]
        if not is_model_id(model_id):
            raise MalformedSource(uri, f"{model_id!r} is not a model of the hub")
        return Source(Scheme.HUB, uri, uri, f"hf--{model_id.replace('/', '--')}", "")
    if uri.startswith("local://") and len(uri) > len("local://") and "\0" not in uri:
        return Source(Scheme.LOCAL, uri, uri, "", uri.removeprefix("local://"))
    raise MalformedSource(
        uri, "not of the form repo://name:version[/file], huggingface://org/model or local://path"
    )


def is_model_id(text: str) -> bool:
    """`org/model` or `model`, by the hub's own rules (which leave `--` free for our folder names)."""
    return (
        all(
            re.fullmatch(r"[A-Za-z0-9_](?:[\w.-]{0,94}[\w])?", part, re.ASCII)
            and "--" not in part
            and ".." not in part
            for part in text.split("/")
        )
        and text.count("/") <= 1
    )


def unsafe_path(path: str) -> str | None:
    """Why `path`, a file name that came from outside, must not be joined to a folder; None if it may."""
    if not path or path.startswith("/"):
        return "is not a relative path"
    if _DRIVE.match(path):
        return "starts with a drive letter"
    if _UNSAFE.search(path):
        return "holds a backslash, a control character or half of one"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "holds an empty, '.' or '..' segment"
    if (
        any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in PurePosixPath(path).parts)
        or len(path) > 1024
    ):
        return "is too long"
    return None
