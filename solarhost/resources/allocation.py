"""From what is wanted to a claim that fits, or to the reason why not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from solarhost.resources.accounts import Accounts, Figures
from solarhost.resources.errors import CapacityExceeded, TelemetryUnavailable, UnknownGpu
from solarhost.resources.ledger import Claim
from solarhost.resources.readings import Gpu


@dataclass(frozen=True, slots=True)
class Need:
    """What is wanted, in bytes; `vram` on each of `gpu_count` devices, or on those of `gpu_ids`."""

    vram: int = 0
    ram: int = 0
    disk: int = 0
    gpu_count: int = 1
    gpu_ids: Sequence[int | str] | None = None


def allocate(need: Need, accounts: Accounts) -> Claim:
    """Choose devices and check every dimension.

    Without a GPU, and on one that shares the machine's memory, VRAM is RAM.

    Raises:
        CapacityExceeded: it does not fit; names the dimension and the device.
        TelemetryUnavailable: what is free can't be known.
    """
    gpus = _devices(need, accounts) if need.vram or need.gpu_ids else []
    own = [gpu for gpu in gpus if not gpu.unified]
    for gpu in own if need.vram else []:
        available = accounts.device(gpu).available
        if available is None:
            raise TelemetryUnavailable("vram", f"{gpu}: {gpu.problem}")
        if need.vram > available:
            raise CapacityExceeded("vram", need.vram, available, gpu)
    ram = need.ram + need.vram * (len(gpus) - len(own) if gpus else 1)
    _check("ram", ram, accounts.ram)
    _check("disk", need.disk, accounts.disk)
    return Claim(tuple(gpu.key for gpu in gpus), need.vram if own else 0, ram, need.disk)


def _devices(need: Need, accounts: Accounts) -> list[Gpu]:
    """Those named, else those with most room; none on a machine without GPUs."""
    gpu = accounts.readings.gpu
    if gpu.problem:
        raise TelemetryUnavailable("vram", gpu.problem)
    if not gpu.devices:
        return []
    if need.gpu_ids is None:
        picked = accounts.pick(need.gpu_count)
        if len(picked) < need.gpu_count:
            vram = accounts.vram or accounts.ram
            why = f"{need.gpu_count} GPUs requested, {len(picked)} of {len(gpu.devices)} can be used"
            raise CapacityExceeded("vram", need.vram * need.gpu_count, vram.available or 0, why=why)
        return picked
    named = []
    for gpu_id in need.gpu_ids:
        found = gpu.find(gpu_id)
        if found is None:
            raise UnknownGpu(gpu_id, need.vram, gpu.devices)
        if found in named:
            raise CapacityExceeded("vram", need.vram, 0, found, "it is named twice")
        named.append(found)
    return named


def _check(dimension: str, wanted: int, figures: Figures) -> None:
    if not wanted:
        return
    if figures.available is None:
        raise TelemetryUnavailable(dimension, f"the {dimension} of this machine could not be read")
    if wanted > figures.available:
        raise CapacityExceeded(dimension, wanted, figures.available)
