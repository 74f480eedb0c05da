"""GPU models that the development cluster can have: data sheets in the units of the state file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size of MIG instance: slices of compute, and memory in MiB."""

    slices: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU's data sheet. Power in mW, clocks in MHz, memory in MiB; `mig` is empty where the GPU has none."""

    name: str
    pci_device_id: int
    memory_total_mib: int
    memory_reserved_mib: int
    power_idle_mw: int
    power_limit_mw: int
    clock_idle_mhz: int
    max_clock_sm_mhz: int
    max_clock_mem_mhz: int
    max_clock_video_mhz: int
    nvlinks: int
    ecc: bool
    mig: Mapping[str, MigProfile]


_MIG_A100_80 = {
    "1g.10gb": MigProfile(1, 9728),
    "2g.20gb": MigProfile(2, 19968),
    "3g.40gb": MigProfile(3, 40192),
    "4g.40gb": MigProfile(4, 40192),
    "7g.80gb": MigProfile(7, 81152),
}

# Names as nvmlDeviceGetName tells them; figures from NVIDIA's data sheets, idle power and reserved memory as usual.
MODELS: Mapping[str, GpuModel] = MappingProxyType(
    {
        "A100-SXM4-80GB": GpuModel(
            name="NVIDIA A100-SXM4-80GB",
            pci_device_id=0x20B210DE,
            memory_total_mib=81920,
            memory_reserved_mib=614,
            power_idle_mw=62_000,
            power_limit_mw=400_000,
            clock_idle_mhz=210,
            max_clock_sm_mhz=1410,
            max_clock_mem_mhz=1593,
            max_clock_video_mhz=1290,
            nvlinks=12,
            ecc=True,
            mig=_MIG_A100_80,
        ),
        "H100-SXM5-80GB": GpuModel(
            name="NVIDIA H100 80GB HBM3",
            pci_device_id=0x233010DE,
            memory_total_mib=81559,
            memory_reserved_mib=551,
            power_idle_mw=72_000,
            power_limit_mw=700_000,
            clock_idle_mhz=345,
            max_clock_sm_mhz=1980,
            max_clock_mem_mhz=2619,
            max_clock_video_mhz=1545,
            nvlinks=18,
            ecc=True,
            mig=_MIG_A100_80,
        ),
        "V100-SXM2-32GB": GpuModel(
            name="Tesla V100-SXM2-32GB",
            pci_device_id=0x1DB510DE,
            memory_total_mib=32768,
            memory_reserved_mib=258,
            power_idle_mw=43_000,
            power_limit_mw=300_000,
            clock_idle_mhz=135,
            max_clock_sm_mhz=1530,
            max_clock_mem_mhz=877,
            max_clock_video_mhz=1372,
            nvlinks=6,
            ecc=True,
            mig={},
        ),
        "RTX-4090": GpuModel(
            name="NVIDIA GeForce RTX 4090",
            pci_device_id=0x268410DE,
            memory_total_mib=24564,
            memory_reserved_mib=346,
            power_idle_mw=18_000,
            power_limit_mw=450_000,
            clock_idle_mhz=210,
            max_clock_sm_mhz=3105,
            max_clock_mem_mhz=10501,
            max_clock_video_mhz=2415,
            nvlinks=0,
            ecc=False,
            mig={},
        ),
    }
)
