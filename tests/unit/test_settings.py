"""What stands in the environment and in `.env`: what can't be understood is said, not passed over."""

from dataclasses import fields
from pathlib import Path

import pytest

from solarhost.doubts import doubts, unknown_names
from solarhost.errors import SettingsError
from solarhost.settings import DEFAULT_API_KEY, Settings, check, read


def test_a_line_that_makes_no_sense_stops_the_start(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text('# a host\nHOST=127.0.0.1\nAPI_KEY="never-closed\n')
    with pytest.raises(SettingsError, match="line 3") as caught:
        read(env_file)
    assert "never-closed" not in str(caught.value), "it may be a secret"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_the_default_key_is_refused_beyond_this_machine(host: str) -> None:
    with pytest.raises(SettingsError, match=f"HOST={host} is reachable from outside"):
        check(Settings(host=host))
    check(Settings(host=host, api_key="a key of one's own"))
    for local in ("127.0.0.1", "::1", "localhost"):
        check(Settings(host=local))


WRONG = {
    "API_KEY": ["schl\u00fcssel", "tab\tinside", " "],
    "SOLAR_CONTROL_API_KEY": ["schl\u00fcssel"],
    "HOST": ["a b", "unix:/run/agent.sock", "http://127.0.0.1"],
    "PORT": ["0", "65536", "http", "1.5"],
    "STOP_TIMEOUT_S": ["-1", "nan", "inf", "1e300", "soon"],
    "MAX_PULLS": ["0", "99999999999"],
    "CONTAINER_UID": ["-1", "99999999999"],
    "LOG_LEVEL": ["verbose"],
    "INSECURE": ["perhaps"],
    "CONFIG_FILE": ["."],
    "LOG_DIR": ["afile"],
    "MODELS_DIR": ["afile"],
    "JOBS_DIR": ["afile"],
    "HF_CACHE_DIR": ["afile"],
    "SSL_CERT_FILE": ["/nowhere/ca.pem", ".", "afile"],
    "REQUESTS_CA_BUNDLE": ["/nowhere/ca.pem"],
    "DOCKER_HOST": ["foo://x", "tcp://127.0.0.1:2375", "/var/run/docker.sock", "unix://docker.sock"],
    "HARBOR_URL": ["http://[", "ftp://h", "http://h:99999", "http://a b"],
    "HF_ENDPOINT": ["http://[", "hub.example.com"],
    "SOLAR_CONTROL_URL": ["http://[", "ftp://h"],
    "GPU_TELEMETRY_OVERRIDE": [
        "GPU",
        "{}",
        '["GPU"]',
        '[{"index": 0, "name": "A", "total_gb": 8}]',
        '[{"index": 0, "name": "A", "total_gb": 8, "used_gb": 9}]',
        '[{"index": -1, "name": "A", "total_gb": 8, "used_gb": 0}]',
        '[{"index": "0", "name": "A", "total_gb": 8, "used_gb": 0}]',
        '[{"index": true, "name": "A", "total_gb": 8, "used_gb": 0}]',
        '[{"index": 0, "name": "A", "total_gb": NaN, "used_gb": 0}]',
        '[{"index": 0, "name": "A", "total_gb": 8, "used_gb": "0"}]',
        '[{"index": 0, "name": "A", "total_gb": 8, "used_gb": 0}, {"index": 0, "name": "B", "total_gb": 8, '
        '"used_gb": 0}]',
    ],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_value_is_refused_by_its_variable(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(name, raising=False)
    Path("afile").touch()
    Path(".env").write_text(f"{name}='{value}'\n")
    if not value.strip():  # nothing but blanks counts as not set
        assert read().api_key == DEFAULT_API_KEY
        return
    with pytest.raises(SettingsError, match=f"^{name}") as caught:
        read()
    assert "KEY" not in name or value not in str(caught.value), "it may be almost the right one"


def test_every_kind_of_value_is_tried() -> None:
    readers = {setting.metadata["read"].__qualname__ for setting in fields(Settings)} - {"text"}
    tried = {
        setting.metadata["read"].__qualname__ for setting in fields(Settings) if setting.name.upper() in WRONG
    }
    assert tried == readers


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "99999", "PORT='99999' is not valid: it must be from 1 to 65535 (Port to listen on)"),
        ("PORT", "http", "PORT='http' is not valid: not a valid integer (Port to listen on)"),
        (
            "LOG_LEVEL",
            "loud",
            "LOG_LEVEL='loud' is not valid: it must be one of DEBUG, INFO, WARNING, ERROR (",
        ),
        (
            "SSL_CERT_FILE",
            "/nowhere/ca.pem",
            "SSL_CERT_FILE='/nowhere/ca.pem' is not valid: it can't be read: No such file or directory (",
        ),
    ],
)
def test_a_wrong_value_is_explained_in_one_sentence(
    name: str, value: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        read(tmp_path / "none")
    assert str(caught.value).startswith(sentence)


def test_each_name_that_is_no_setting_is_told(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("PROT=8003\nMODEL_DIR=x\nPORT=8001\nHF_HUB_ETAG_TIMEOUT=5\n# NOTHING=1\n")
    assert unknown_names(env_file) == [
        f"PROT in {env_file} is not a setting; did you mean PORT?",
        f"MODEL_DIR in {env_file} is not a setting; did you mean MODELS_DIR?",
        f"HF_HUB_ETAG_TIMEOUT in {env_file} is not a setting; it is only passed on to the model servers",
    ]
    assert unknown_names(tmp_path / "none") == []


def test_a_program_that_is_not_there_is_told_and_stops_nothing(tmp_path: Path) -> None:
    def told() -> list[str]:
        return doubts(Settings(llama_server_path=str(tmp_path)), tmp_path / "none")

    program = tmp_path / "llama-server"
    [sentence] = told()
    assert sentence.startswith(
        f"llama.cpp instances can't start: LLAMA_SERVER_PATH={program} is not an executable file"
    )
    program.touch(0o600)
    assert told() == [sentence]
    program.chmod(0o700)
    assert told() == []
    assert doubts(Settings(), tmp_path / "none") == []
