import pytest

from solarhost.errors import SettingsError
from solarhost.net import control_address


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        ("http://h:8000", "http://h:8000"),
        ("https://control.example.com", "https://control.example.com"),
        ("ws://h:8000/ws/host-channel", "http://h:8000"),
        ("wss://h/ws/host-channel?x=1", "https://h"),
        ("h:8000", "http://h:8000"),
        ("  http://a:1 , http://b:2", "http://a:1"),
        ("http://user:pass@h:8000/", "http://h:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("", None),
        (" , http://b:2", None),
    ],
)
def test_only_scheme_host_and_port_of_the_first_address_count(setting, address):
    assert control_address(setting) == address


@pytest.mark.parametrize("setting", ["ftp://h", "http://", "http://h:port", "http://h:99999", "http://[::1"])
def test_what_is_no_address_is_refused_without_showing_it(setting):
    with pytest.raises(SettingsError, match="SOLAR_CONTROL_URL") as caught:
        control_address(setting.replace("//", "//user:hunter2@"))
    assert "hunter2" not in str(caught.value)
