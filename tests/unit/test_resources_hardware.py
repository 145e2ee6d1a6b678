"""A machine without a GPU is told from one whose GPU can't be asked, here without the NVML package."""

import pytest

from solarhost.resources import nvml


@pytest.fixture
def pci(monkeypatch, tmp_path):
    """Adds devices to an otherwise empty PCI bus, of a machine without the driver's files."""
    monkeypatch.setattr(nvml, "pynvml", None)
    monkeypatch.setattr(nvml, "DRIVER_FILES", (tmp_path / "version",))
    monkeypatch.setattr(nvml, "PCI_DEVICES", tmp_path / "pci")

    def add(vendor, kind):
        device = tmp_path / "pci" / f"0000:0{len(list(tmp_path.rglob('vendor')))}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")

    return add


def test_no_nvidia_hardware_is_no_gpu(pci):
    pci("0x8086", "0x030000")  # Intel graphics
    pci("0x10de", "0x040300")  # the sound of an NVIDIA card that was passed on
    reading = nvml.NvmlGpus().read()
    assert (reading.devices, reading.problem) == ((), None)


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_an_nvidia_gpu_without_the_package_says_what_to_install(pci, kind):
    pci("0x10de", kind)
    assert "solar-host[nvidia]" in nvml.NvmlGpus().read().problem


def test_a_driver_without_a_card_on_the_bus_is_taken_seriously_too(pci, tmp_path):
    (tmp_path / "version").write_text("NVRM version: 1")
    assert nvml.NvmlGpus().read().problem is not None
