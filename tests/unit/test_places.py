import pytest

from solarhost.places import NoPlace, Places


def test_no_more_than_the_limit_are_held() -> None:
    places = Places(8)
    held = [places.hold() for _ in range(places.limit)]
    for place in held:
        place.__enter__()
    with pytest.raises(NoPlace), places.hold():
        pass
    held.pop().__exit__(None, None, None)
    with places.hold():
        assert places.held == places.limit


def test_a_place_is_given_back_by_a_failure() -> None:
    places = Places(8)
    with pytest.raises(ValueError, match="x"), places.hold():
        raise ValueError("x")
    assert places.held == 0
