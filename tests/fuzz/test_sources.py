"""What registries, hubs and callers name: no name leaves its folder, and what makes no sense is refused."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from huggingface_hub import ModelInfo
from hypothesis import example, given
from hypothesis import strategies as st

from solarhost.errors import InvalidRequest
from solarhost.modelstore.failures import PullError
from solarhost.modelstore.filters import covers, matches
from solarhost.modelstore.hub import files_of_model
from solarhost.modelstore.registry import files_of_manifest
from solarhost.modelstore.remote import SIZE_MAX, Checksum, RemoteFile, check_files
from solarhost.modelstore.selection import choose_file
from solarhost.modelstore.sources import parse_source
from solarhost.modelstore.staging import Staging
from solarhost.modelstore.transport import LONGEST_WAIT_S, retry_after_s
from tests.fuzz.strategies import altered, any_json, digits, mutated

DIGEST = "sha256:" + "0" * 64
MANIFEST = {
    "schemaVersion": 2,
    "config": {"digest": DIGEST, "size": 2},
    "layers": [
        {"digest": DIGEST, "size": 5, "annotations": {"org.opencontainers.image.title": "a/model.gguf"}},
        {"digest": DIGEST, "size": 6, "annotations": {"org.opencontainers.image.title": "config.json"}},
        {"digest": DIGEST, "size": 7},
    ],
}
MODEL_INFO = {
    "id": "org/m",
    "sha": "0" * 40,
    "siblings": [
        {"rfilename": "config.json", "size": 5, "blobId": "0" * 40},
        {
            "rfilename": "a/model.gguf",
            "size": 6,
            "blobId": "0" * 40,
            "lfs": {"sha256": "0" * 64, "size": 6, "pointerSize": 130},
        },
    ],
    "createdAt": "2026-01-01T00:00:00.000Z",
    "tags": [],
}
PIECES = [
    "..",
    ".",
    "/",
    "\\",
    "a",
    "C:",
    "~",
    "\0",
    "\n",
    "é",
    "*",
    "[",
    "]",
    "?",
    "**",
    " ",
    "\udcff",
    "x" * 300,
]
names = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(st.characters(), max_size=20)


def check_listing(files: list[RemoteFile]) -> None:
    """It can be downloaded, and no part of it becomes a path of its own."""
    check_files(files)
    for file in files:
        Checksum(file)
        assert 0 <= file.size <= SIZE_MAX
        assert Staging(Path("/m"), "slug").part(file).parent == Path("/m/.staging/slug/parts")


@given(
    mutated(MANIFEST, any_json | names).map(lambda value: json.dumps(value).encode())
    | any_json.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=200)
)
def test_any_manifest_of_an_artifact(body: bytes) -> None:
    with suppress(PullError):
        check_listing(files_of_manifest(body))


def test_a_manifest_that_is_nothing_but_depth() -> None:
    with pytest.raises(PullError, match="can't be read"):
        files_of_manifest(b'{"layers":' + b"[" * 100_000)


@given(st.lists(names, min_size=1, max_size=4))
def test_files_are_laid_out_inside_their_folder_or_not_at_all(titles: list[str]) -> None:
    files = [RemoteFile(title, 1, f"sha256:{number:064d}") for number, title in enumerate(titles)]
    try:
        check_files(files)
    except PullError:
        return
    with TemporaryDirectory() as name:
        outside = Path(name)
        staging = Staging(outside / "models", "slug")
        with staging.locked():
            for file in files:
                staging.part(file).write_bytes(b"x")
            staging.lay_out(files, [])
        laid_out = {str(path.relative_to(staging.tree)) for path in staging.tree.rglob("*") if path.is_file()}
        assert laid_out == set(titles)
        assert [path.name for path in outside.iterdir()] == ["models"]


@given(
    st.builds(
        lambda scheme, *rest: scheme + "".join(rest),
        st.sampled_from(["repo://", "huggingface://", "local://", "REPO://", "http://", ""]),
        names,
        st.sampled_from(["", ":v1", "/m", "--", ":..", ":v1/"]),
        names,
    )
)
def test_any_source_uri_gives_one_folder_or_is_refused(uri: str) -> None:
    with suppress(InvalidRequest):
        source = parse_source(uri)
        assert source.uri == uri
        root = Path("/models")
        if source.slug:
            assert (root / source.slug).parent == root
            assert not source.slug.startswith(".")
            inside = (root / source.slug / source.subpath).resolve()
            assert inside.is_relative_to(root / source.slug)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with links that lead out of it."""
    place = tmp_path_factory.mktemp("place")
    (place / "secret.gguf").write_text("outside")
    folder = place / "model"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.gguf").write_text("1")
    (folder / "[é].gguf").write_text("22")
    (folder / "out.gguf").symlink_to(place / "secret.gguf")
    (folder / "up").symlink_to(place)
    return folder


@given(pattern=names)
def test_any_pattern_chooses_inside_the_folder_or_nothing(model: Path, pattern: str) -> None:
    if pattern.startswith("/"):
        return  # an absolute path is taken as it is
    with suppress(InvalidRequest):
        assert choose_file(model, pattern).resolve().is_relative_to(model.resolve())


@given(st.lists(names, max_size=3), st.lists(names, max_size=3), names)
def test_what_covers_a_filter_keeps_all_that_it_keeps(have: list[str], asked: list[str], name: str) -> None:
    if covers(have, asked) and matches(name, asked):
        assert matches(name, have)


HEADERS = [
    *(
        "Mon, 30 Nov 2026 05:00:00 GMT",
        "Mon, 30 Nov 2026 05:00:00 +9999",
        "Mon, 30 Nov 99999999999 05:00:00 GMT",
    ),
    *("Fri, 31 Dec 9999 23:59:59 -0100", "Sat, 01 Jan 0001 00:00:00 +0100", "Mon, 30 Nov 2026 25:00", "120"),
]


@given(
    digits
    | st.text(st.characters(max_codepoint=255), max_size=20)
    | st.sampled_from(HEADERS).flatmap(altered)
)
@example("\N{SUPERSCRIPT TWO}")
@example("Mon, 30 Nov 99999999999999999999 05:00:00 GMT")
def test_any_wait_that_a_source_asks_for(text: str) -> None:
    assert 0 <= retry_after_s({"Retry-After": text}) <= LONGEST_WAIT_S


@given(mutated(MODEL_INFO))
def test_any_description_of_a_model_of_the_hub(body: Any) -> None:
    with suppress(
        LookupError, TypeError, AttributeError, ValueError
    ):  # the library's own, which `Hub` expects
        info = ModelInfo(**body)
        with suppress(PullError):
            check_listing(files_of_model(info))
