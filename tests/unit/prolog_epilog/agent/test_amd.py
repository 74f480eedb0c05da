"""AMD's reader over a module like amdsmi 7.0.2 (its names, its dictionaries, its errors), and the choice of readers."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profiler import readers
from profiler.amd import AmdReader
from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpusUnavailableError
from profiler.readers import NodeReader

MIB = 1 << 20
NOT_SUPPORTED, IO, DRIVER_NOT_LOADED = 2, 12, 34
NAMES = {NOT_SUPPORTED: "NOT_SUPPORTED", IO: "IO", DRIVER_NOT_LOADED: "DRIVER_NOT_LOADED"}


class AmdSmiException(Exception):  # noqa: N818 - its name there
    """As in amdsmi_exception.py."""


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def get_error_code(self) -> int:
        return self.err_code

    def get_error_info(self, detailed: bool = True) -> str:
        name = f"AMDSMI_STATUS_{NAMES[self.err_code]}"
        return f"{name} - said at length" if detailed else name


class Clk(IntEnum):
    SYS = 0
    GFX = 0x100
    MEM = 4


class Temperature(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class Metric(IntEnum):
    CURRENT = 0


UUID = "18ff740f-0000-1000-80ae-000000000001"
IDENTITY = GpuIdentity(UUID, 136, "AMD Instinct MI300X", "0000:0B:00.0")


class FakeSmi(ModuleType):
    """amdsmi of one GPU. `answers` has what a function returns, or the code of its error."""

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = Clk
    AmdSmiTemperatureType = Temperature
    AmdSmiTemperatureMetric = Metric

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.closed = False
        self.answers: dict[Any, Any] = {
            "amdsmi_init": None,
            "amdsmi_shut_down": None,
            "amdsmi_get_processor_handles": ["handle"],
            "amdsmi_get_gpu_device_uuid": UUID,
            "amdsmi_get_gpu_device_bdf": "0000:0B:00.0",
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "vendor_id": 4098},
            "amdsmi_get_gpu_enumeration_info": {"drm_render": 136, "drm_card": 9, "hip_id": 1},
            "amdsmi_get_gpu_activity": {"gfx_activity": 85, "umc_activity": 20, "mm_activity": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 4000},
            "amdsmi_get_power_info": {
                "socket_power": 600,
                "current_socket_power": 610,
                "average_socket_power": "N/A",
                "power_limit": 750_000_000,
            },
            "amdsmi_get_power_cap_info": {"power_cap": 750_000_000, "max_power_cap": 750_000_000},
            "amdsmi_get_gpu_total_ecc_count": {
                "correctable_count": 3,
                "uncorrectable_count": 0,
                "deferred_count": 0,
            },
            "amdsmi_get_temp_metric": 71,
            "amdsmi_get_gpu_process_list": [{"name": "python", "pid": 4711, "mem": 5 * MIB}],
            "amdsmi_get_energy_count": {
                "energy_accumulator": 2_000_000,
                "counter_resolution": 15.3,
                "timestamp": 1,
            },
            ("amdsmi_get_clock_info", Clk.GFX): {"clk": 2100, "min_clk": 500, "max_clk": 2100},
            ("amdsmi_get_clock_info", Clk.MEM): {"clk": 1300, "min_clk": 900, "max_clk": 1300},
        }

    def __getattr__(self, name: str) -> Any:
        if not any(key == name or key[0] == name for key in self.answers):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            key = name if name in self.answers else (name, arguments[-1])
            answer = self.answers[key]
            if isinstance(answer, AmdSmiException):
                raise answer
            self.closed |= name == "amdsmi_shut_down"
            return answer

        return call

    def fail(self, code: int, *functions: str) -> None:
        for key in self.answers:
            if not functions or key in functions or key[0] in functions:
                self.answers[key] = AmdSmiLibraryException(code)


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    made = FakeSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    return made


def test_a_gpu_at_work(smi: FakeSmi) -> None:
    calls: list[tuple[str, str]] = []
    reader = AmdReader(lambda gpu, function: calls.append((gpu, function)))
    (gpu,) = reader.gpus()
    assert gpu == IDENTITY and reader.gpus([UUID]) == ()
    assert reader.read(gpu) == GpuReading(
        gpu,
        utilisation=85,
        memory_used_bytes=4000 * MIB,
        memory_total_bytes=196592 * MIB,
        power_w=610,
        power_limit_w=750,
        temperature_c=71,
        clock_sm_mhz=2100,
        clock_sm_max_mhz=2100,
        clock_memory_mhz=1300,
        ecc_corrected=3,
        ecc_uncorrected=0,
        processes=(GpuProcess(4711, 5 * MIB),),
        energy_j=2_000_000 * 15.3 / 1e6,
    )
    assert ("", "amdsmi_init") in calls and (UUID, "amdsmi_get_gpu_activity") in calls
    reader.close()
    assert smi.closed


UNKNOWN = [
    ("amdsmi_get_gpu_activity", {"gfx_activity": "N/A"}, ["utilisation"]),
    ("amdsmi_get_gpu_activity", {"gfx_activity": 65535}, ["utilisation"]),
    (
        "amdsmi_get_gpu_vram_usage",
        {"vram_total": 0, "vram_used": 0},
        ["memory_used_bytes", "memory_total_bytes"],
    ),
    ("amdsmi_get_power_info", {"current_socket_power": 0, "average_socket_power": "N/A"}, ["power_w"]),
    ("amdsmi_get_power_cap_info", {"power_cap": 0xFFFFFFFFFFFFFFFF}, ["power_limit_w"]),
    ("amdsmi_get_temp_metric", 2**40, ["temperature_c"]),
    ("amdsmi_get_gpu_process_list", "No processes", ["processes"]),
    ("amdsmi_get_energy_count", {}, ["energy_j"]),
]
NEVER = {
    "throttle",
    "xids",
    "fault",
    "remap_pending",
    "remap_failed",
    "rows_remapped",
    "retirement_pending",
    "nvlinks",
    "recent",
}


@pytest.mark.parametrize(("function", "answer", "fields"), UNKNOWN)
def test_what_amdsmi_does_not_tell_is_none_and_the_rest_is_told(
    smi: FakeSmi, function: str, answer: Any, fields: list[str]
) -> None:
    for said in (answer, AmdSmiLibraryException(NOT_SUPPORTED), AmdSmiException("wrong parameter")):
        smi.answers[function] = said
        reading = AmdReader().read(IDENTITY)
        unknown = {name for name in GpuReading.__dataclass_fields__ if getattr(reading, name) is None}
        assert unknown - NEVER == set(fields)


def test_the_mean_power_where_that_is_what_a_model_tells(smi: FakeSmi) -> None:
    smi.answers["amdsmi_get_power_info"] = {"current_socket_power": "N/A", "average_socket_power": 300}
    assert AmdReader().read(IDENTITY).power_w == 300


def test_the_render_node_by_the_kernel_where_amdsmi_is_older(smi: FakeSmi, tmp_path: Path) -> None:
    del smi.answers["amdsmi_get_gpu_enumeration_info"]
    (tmp_path / "0000:0b:00.0" / "drm" / "renderD137").mkdir(parents=True)
    (tmp_path / "0000:0b:00.0" / "drm" / "card9").mkdir()
    assert [gpu.minor for gpu in AmdReader(pci=tmp_path).gpus()] == [137]
    assert [gpu.minor for gpu in AmdReader(pci=tmp_path / "nothing").gpus()] == [None]


def test_a_gpu_that_answers_nothing_is_a_fault(smi: FakeSmi) -> None:
    reader = AmdReader()
    smi.fail(IO)
    assert reader.read(IDENTITY) == GpuReading(IDENTITY, fault="IO")
    reader.close()


def test_a_gpu_that_cannot_say_who_it_is_is_counted(smi: FakeSmi) -> None:
    smi.fail(IO, "amdsmi_get_gpu_device_uuid")
    reader = AmdReader()
    assert (reader.gpus(), reader.unreachable) == ((), 1)


def test_a_driver_that_is_not_there_or_goes(smi: FakeSmi) -> None:
    reader = AmdReader()
    smi.fail(DRIVER_NOT_LOADED)
    with pytest.raises(GpusUnavailableError, match=r"(?s)amdsmi says .*amd-smi list"):
        reader.read(IDENTITY)
    with pytest.raises(GpusUnavailableError):
        AmdReader()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(GpusUnavailableError, match=r"gsub\[amd\]"):
        AmdReader()


# --- the choice ---


class FakeNvml:
    """NVIDIA's reader of one GPU."""

    gpu = GpuIdentity("GPU-a", 0, "A100")
    unreachable = 2

    def __init__(self, watch: Any) -> None:
        self.closed = False

    def gpus(self, leave_alone: Any = ()) -> tuple[GpuIdentity, ...]:
        return (self.gpu,)

    def read(self, gpu: GpuIdentity) -> GpuReading:
        return GpuReading(gpu, utilisation=1.0)

    def close(self) -> None:
        self.closed = True


class NoNvml:
    def __init__(self, watch: Any) -> None:
        raise GpusUnavailableError("no NVIDIA driver")


def quiet(_gpu: str, _function: str) -> None:
    pass


@pytest.fixture
def kfd(tmp_path: Path) -> Path:
    path = tmp_path / "kfd"
    path.touch()
    return path


def test_gpus_of_both_makers(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch, kfd: Path) -> None:
    monkeypatch.setattr(readers, "NvmlReader", FakeNvml)
    reader = NodeReader(quiet, kfd=kfd)
    assert [reader.read(gpu).utilisation for gpu in reader.gpus()] == [1, 85]
    assert reader.unreachable == 2
    reader.close()
    assert smi.closed


def test_amd_alone_nvidia_alone_and_none(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch, kfd: Path) -> None:
    monkeypatch.setattr(readers, "NvmlReader", NoNvml)
    assert NodeReader(quiet, kfd=kfd).gpus() == (IDENTITY,)
    with pytest.raises(GpusUnavailableError, match="no NVIDIA driver"):
        NodeReader(quiet, kfd=kfd.with_name("none"))
    smi.fail(DRIVER_NOT_LOADED)
    with pytest.raises(GpusUnavailableError, match="amdsmi"):
        NodeReader(quiet, kfd=kfd)
    monkeypatch.setattr(readers, "NvmlReader", FakeNvml)
    assert NodeReader(quiet, kfd=kfd).gpus() == (FakeNvml.gpu,)
