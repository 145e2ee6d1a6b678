"""What is installed with the agent knows its settings and its files."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from solarhost.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "contrib" / "systemd" / "solar-host.env"
DOCKER = ROOT / "contrib" / "docker"
OTHERS = {"CUDA_VISIBLE_DEVICES"}  # variables of model servers


def test_the_settings_file_offers_settings_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its lines can be taken as it is."""
    lines = [
        line.removeprefix("#") for line in SETTINGS.read_text().splitlines() if re.match("#?[A-Z_]+=", line)
    ]
    names = {line.partition("=")[0] for line in lines}
    assert names - {field.name.upper() for field in fields(Settings)} == OTHERS
    for name in names:
        monkeypatch.setenv(name, "")  # not those of whoever runs the tests, and put back afterwards
        monkeypatch.delenv(name)
    file = tmp_path / "settings"
    file.write_text("\n".join([*lines, "API_KEY=a-key"]))
    assert load(file).stop_timeout_s == Settings().stop_timeout_s


def test_the_grace_of_a_stop_is_long_enough() -> None:
    needed_s = Settings().stop_timeout_s + 5
    unit = (ROOT / "contrib" / "systemd" / "solar-host.service").read_text()
    stop = re.search("^TimeoutStopSec=([0-9]+)$", unit, re.MULTILINE)
    assert stop
    assert int(stop[1]) > needed_s
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["solar-host"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > needed_s


def test_the_image_is_made_of_what_is_there() -> None:
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    copied = {path for line in lines for path in line.split()}
    assert all((ROOT / path).exists() for path in copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_folders_are_called_the_same_inside_and_outside() -> None:
    for path in DOCKER.glob("compose*.yaml"):
        service = yaml.safe_load(path.read_text())["services"]["solar-host"]
        for volume in service.get("volumes", []):
            outside, inside = volume.split(":")
            assert outside == inside
