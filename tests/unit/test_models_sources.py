import pytest

from solarhost.modelstore.sources import MalformedSource, Scheme, parse_source, unsafe_path


@pytest.mark.parametrize(
    ("uri", "scheme", "key", "slug", "subpath"),
    [
        ("repo://iris-osl:v3", Scheme.REPO, "repo://iris-osl:v3", "repo--iris-osl--v3", ""),
        ("repo://a:1.0/sub/m.gguf", Scheme.REPO, "repo://a:1.0", "repo--a--1.0", "sub/m.gguf"),
        (
            "huggingface://org/My.Model-1",
            Scheme.HUB,
            "huggingface://org/My.Model-1",
            "hf--org--My.Model-1",
            "",
        ),
        ("huggingface://gpt2", Scheme.HUB, "huggingface://gpt2", "hf--gpt2", ""),
        ("local://mine/m.gguf", Scheme.LOCAL, "local://mine/m.gguf", "", "mine/m.gguf"),
        ("local:///models/m.gguf", Scheme.LOCAL, "local:///models/m.gguf", "", "/models/m.gguf"),
    ],
)
def test_a_source_uri_gives_its_key_and_its_folder(uri, scheme, key, slug, subpath):
    source = parse_source(uri)
    assert (source.scheme, source.key, source.slug, source.subpath) == (scheme, key, slug, subpath)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "org/model",
        "http://host/model",
        "repo://name",
        "repo://name:",
        "repo://name:..",
        "repo://na/me:v1",
        "repo://name:v1/../../etc/passwd",
        "repo://name:v1//etc/passwd",
        "repo://name:v1/a\nb",
        "huggingface://",
        "huggingface://../../etc",
        "huggingface://org/..",
        "huggingface://org/a--b",
        "huggingface://a/b/c",
        "huggingface://org/model\n",
        "local://",
    ],
)
def test_a_uri_that_can_not_be_read_is_refused(uri):
    with pytest.raises(MalformedSource):
        parse_source(uri)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "C:evil", "c:/evil", "..", "a/../b", "./a", "a//b", "a/", "a\\b", "a\0b", "x" * 256],
)
def test_a_file_name_that_could_leave_its_folder_is_unsafe(path):
    assert unsafe_path(path) is not None


@pytest.mark.parametrize("path", ["model.gguf", "sub/model-00001-of-00002.gguf", "..name", "a b", "ü"])
def test_an_ordinary_file_name_is_safe(path):
    assert unsafe_path(path) is None
