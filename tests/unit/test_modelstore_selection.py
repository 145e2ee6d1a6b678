"""Which file of a model folder a pattern means."""

from pathlib import Path

import pytest

from solarhost.errors import InvalidRequest
from solarhost.modelstore.selection import choose_file, choose_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


def put(folder: Path, name: str, size: int = 1) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_an_absolute_path_is_taken_as_it_is(folder):
    assert choose_file(folder, "/elsewhere/model.gguf") == Path("/elsewhere/model.gguf")


def test_a_relative_path_comes_before_a_larger_match_of_the_same_glob(folder):
    exact = put(folder, "q[4].gguf", 1)  # as a glob this would mean q4.gguf
    put(folder, "q4.gguf", 9)
    assert choose_file(folder, "q[4].gguf") == exact


def test_a_relative_path_may_name_a_subfolder(folder):
    nested = put(folder, "UD-Q4/model.gguf")
    assert choose_file(folder, "UD-Q4/model.gguf") == nested


def test_a_glob_at_the_root_comes_before_a_larger_file_below(folder):
    top = put(folder, "small-Q4.gguf", 1)
    put(folder, "sub/large-Q4.gguf", 9)
    assert choose_file(folder, "*Q4*.gguf") == top


def test_a_bare_name_is_found_inside_a_subfolder(folder):
    nested = put(folder, "a/b/model.gguf")
    put(folder, "a/b/other.gguf", 9)
    assert choose_file(folder, "model.gguf") == nested


def test_a_glob_with_folders_is_found_at_any_depth(folder):
    nested = put(folder, "a/Q4/model.gguf")
    put(folder, "a/Q8/model.gguf", 9)
    assert choose_file(folder, "Q4/*.gguf") == nested
    assert choose_file(folder, "a/**/Q4/*.gguf") == nested


def test_the_largest_of_several_wins(folder):
    put(folder, "a.gguf", 1)
    largest = put(folder, "b.gguf", 3)
    put(folder, "c.gguf", 2)
    assert choose_file(folder, "*.gguf") == largest


def test_later_shards_are_dropped_even_when_they_are_larger(folder):
    first = put(folder, "m-00001-of-00003.gguf", 2)
    put(folder, "m-00002-of-00003.gguf", 9)
    put(folder, "m-00003-of-00003.gguf", 9)
    put(folder, "mmproj.gguf", 1)
    assert choose_file(folder, "*.gguf") == first


def test_later_shards_without_their_first_are_an_error(folder):
    put(folder, "m-00002-of-00002.gguf")
    with pytest.raises(InvalidRequest, match="first part is missing"):
        choose_file(folder, "m-*.gguf")


def test_equal_sizes_are_an_error_that_lists_them(folder):
    put(folder, "a.gguf", 5)
    put(folder, "b.gguf", 5)
    put(folder, "small.gguf", 1)
    with pytest.raises(InvalidRequest, match=r"a\.gguf, b\.gguf$"):
        choose_file(folder, "*.gguf")


def test_nothing_matching_is_an_error_that_lists_what_is_there(folder):
    put(folder, "a/model-Q8.gguf")
    with pytest.raises(InvalidRequest, match=r"'\*Q4\*': a/model-Q8\.gguf"):
        choose_file(folder, "*Q4*")


def test_a_long_listing_is_cut_and_says_how_much_is_left(folder):
    for number in range(12):
        put(folder, f"{number:02}.gguf")
    with pytest.raises(InvalidRequest, match=r"09\.gguf and 2 more"):
        choose_file(folder, "none")


def test_case_matters(folder):
    put(folder, "model-q4.gguf")
    with pytest.raises(InvalidRequest):
        choose_file(folder, "*Q4*")


def test_a_symlink_that_leads_out_is_never_chosen(folder):
    outside = put(folder.parent, "secret.gguf")
    (folder / "link.gguf").symlink_to(outside)
    (folder / "way-out").symlink_to(folder.parent)
    for pattern in ("link.gguf", "*.gguf", "../secret.gguf", "way-out/secret.gguf", "way-out/*.gguf"):
        with pytest.raises(InvalidRequest):
            choose_file(folder, pattern)


def test_a_symlink_inside_the_folder_is_fine(folder):
    put(folder, "blobs/abc", 4)
    link = folder / "model.gguf"
    link.symlink_to("blobs/abc")
    assert choose_file(folder, "*.gguf") == link


def test_a_folder_reached_through_a_symlink_works(folder, tmp_path):
    put(folder, "model.gguf")
    alias = tmp_path / "alias"
    alias.symlink_to(folder)
    assert choose_file(alias, "*.gguf") == folder / "model.gguf"


def test_globs_leave_hidden_files_out(folder):
    put(folder, ".cache/model.gguf", 9)
    put(folder, ".hidden.gguf", 9)
    seen = put(folder, "model.gguf", 1)
    assert choose_file(folder, "*.gguf") == seen


def test_a_pattern_of_many_folders_takes_no_time(folder):
    deep = put(folder, "a/" * 40 + "model.gguf", 1)
    assert choose_file(folder, "**/a/" * 20 + "*.gguf") == deep
    with pytest.raises(InvalidRequest, match="matches"):
        choose_file(folder, "**/a/" * 20 + "none")


@pytest.mark.parametrize("pattern", ["", "a\0b", "x" * 300, "**", "..", "/".join(["**"] * 50), "[", "sub"])
def test_an_odd_pattern_is_an_error_and_not_a_crash(folder, pattern):
    (folder / "sub").mkdir()
    with pytest.raises(InvalidRequest):
        choose_file(folder, pattern)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(InvalidRequest, match="does not exist"):
        choose_file(tmp_path / "none", "*.gguf")
    with pytest.raises(InvalidRequest, match="does not exist"):
        choose_weights(tmp_path / "none")


def test_without_a_pattern_a_projector_is_not_taken_for_the_model(folder):
    put(folder, "mmproj-F16.gguf", 9)
    put(folder, "README.md", 20)
    model = put(folder, "sub/model-Q4.GGUF", 3)
    assert choose_weights(folder) == model


def test_without_any_gguf_the_error_lists_what_is_there(folder):
    put(folder, "model.safetensors")
    with pytest.raises(InvalidRequest, match=r"no GGUF model in .*: model\.safetensors"):
        choose_weights(folder)
