"""Reads AMD GPUs through amdsmi, AMD's own bindings: an extra (``gsub[amd]``), imported when there is such a GPU.

The shape of the answers is that of amdsmi 6.2 to 7.0: dictionaries, "N/A" for what is not known. Power is in watts, the
power cap in microwatts, memory in MiB, the energy counter in steps of its own (AMD SMI's amdsmi.h).

Not known here: Xid events (AMD has none), throttling (the question makes the driver wait 0.1 s for each GPU), the
driver's own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpusUnavailableError

KFD = Path("/dev/kfd")
"""The device file of AMD's compute driver: without it no AMD GPU can be computed on."""

_MIB = 1 << 20
_NO_DRIVER = (32, 34, 51)  # AMDSMI_STATUS_NOT_INIT, _DRIVER_NOT_LOADED, _NO_DRV
_MAX_UINT32 = 0xFFFFFFFF


class AmdReader:
    """A `GpuReader` over amdsmi; `watch` as for `profiler.nvml.NvmlReader`.

    A GPU's `minor` is the number of its render node (128: /dev/dri/renderD128), which is what gres.conf names.

    Raises GpusUnavailableError without the package, the library or the driver. Not for several threads at once.
    """

    def __init__(
        self,
        watch: Callable[[str, str], None] = lambda _gpu, _function: None,
        *,
        pci: Path = Path("/sys/bus/pci/devices"),
    ) -> None:
        try:
            import amdsmi
        # Without its library the package fails at import, each release in its own way.
        except (ImportError, OSError, KeyError, AttributeError) as error:
            raise GpusUnavailableError(
                f"The AMD GPUs of this node cannot be read: importing amdsmi failed ({error!r}).\n"
                "Install it with `pip install gsub[amd]`, in the release of this node's ROCm."
            ) from None
        self._smi: Any = amdsmi
        self._watch = watch
        self._pci = pci
        self._error = ""  # of the last question that failed
        self._handles: dict[str, Any] = {}
        self._gpus: list[GpuIdentity] = []
        self.unreachable = 0
        """GPUs that the driver counts but that cannot say who they are."""
        try:
            watch("", "amdsmi_init")
            amdsmi.amdsmi_init()
        except amdsmi.AmdSmiException as error:
            raise self._unavailable(error) from None
        for handle in self._ask("", "amdsmi_get_processor_handles") or ():
            self._enter(handle)

    def gpus(self, leave_alone: Collection[str] = ()) -> tuple[GpuIdentity, ...]:
        """The GPUs that there were when this reader began."""
        return tuple(gpu for gpu in self._gpus if gpu.uuid not in leave_alone)

    def read(self, gpu: GpuIdentity) -> GpuReading:
        """What a GPU does now. Raises GpusUnavailableError if the whole driver has gone."""
        self._error = ""
        uuid, handle = gpu.uuid, self._handles[gpu.uuid]
        smi = self._smi
        activity = self._fields(uuid, "amdsmi_get_gpu_activity", handle)
        memory = self._fields(uuid, "amdsmi_get_gpu_vram_usage", handle)
        power = self._fields(uuid, "amdsmi_get_power_info", handle)
        cap = self._fields(uuid, "amdsmi_get_power_cap_info", handle)
        ecc = self._fields(uuid, "amdsmi_get_gpu_total_ecc_count", handle)
        core = self._fields(uuid, "amdsmi_get_clock_info", handle, smi.AmdSmiClkType.GFX)
        ram = self._fields(uuid, "amdsmi_get_clock_info", handle, smi.AmdSmiClkType.MEM)
        hot = self._ask(
            uuid,
            "amdsmi_get_temp_metric",
            handle,
            smi.AmdSmiTemperatureType.HOTSPOT,
            smi.AmdSmiTemperatureMetric.CURRENT,
        )
        total = _number(memory.get("vram_total"), 1 << 24)
        used = _number(memory.get("vram_used"), total or 0)
        limit = _number(cap.get("power_cap"), 1e10)
        reading = GpuReading(
            gpu,
            utilisation=_number(activity.get("gfx_activity"), 100),
            memory_used_bytes=None if used is None or not total else used * _MIB,
            memory_total_bytes=total * _MIB if total else None,
            power_w=_power(power),
            power_limit_w=limit / 1e6 if limit else None,
            temperature_c=_number(hot, 200),
            clock_sm_mhz=_number(core.get("clk"), 20_000),
            clock_sm_max_mhz=_number(core.get("max_clk"), 20_000),
            clock_memory_mhz=_number(ram.get("clk"), 50_000),
            ecc_corrected=_number(ecc.get("correctable_count"), 2**53),
            ecc_uncorrected=_number(ecc.get("uncorrectable_count"), 2**53),
            processes=self._processes(uuid, handle),
            energy_j=self._energy(uuid, handle),
        )
        # There is no error for a GPU that was lost: it is one that answers nothing any more.
        return replace(reading, fault=self._error) if reading == GpuReading(gpu) and self._error else reading

    def close(self) -> None:
        """Let go of the driver; harmless if it has gone."""
        try:
            self._smi.amdsmi_shut_down()
        except self._smi.AmdSmiException:
            return

    def _enter(self, handle: Any) -> None:  # noqa: ANN401 - a pointer
        uuid = self._ask("", "amdsmi_get_gpu_device_uuid", handle)
        if not uuid:
            self.unreachable += 1
            return
        asic = self._fields(uuid, "amdsmi_get_gpu_asic_info", handle)
        address = self._ask(uuid, "amdsmi_get_gpu_device_bdf", handle)
        name = asic.get("market_name")
        self._handles[uuid] = handle
        self._gpus.append(
            GpuIdentity(
                uuid=uuid,
                minor=self._render_node(uuid, handle, address),
                name=name if isinstance(name, str) and name not in ("", "N/A") else "AMD GPU",
                pci=address,
            )
        )

    def _render_node(self, uuid: str, handle: Any, address: str | None) -> int | None:  # noqa: ANN401
        """By amdsmi, since 6.4; else by the kernel's list of the PCI device's drivers."""
        number: int | None = _number(
            self._fields(uuid, "amdsmi_get_gpu_enumeration_info", handle).get("drm_render"), 1 << 20
        )
        if number is not None or not address:
            return number
        try:
            names = [path.name for path in (self._pci / address.lower() / "drm").iterdir()]
        except OSError:
            return None
        return next(
            (int(name[7:]) for name in names if name.startswith("renderD") and name[7:].isdecimal()), None
        )

    def _processes(self, uuid: str, handle: Any) -> tuple[GpuProcess, ...] | None:  # noqa: ANN401
        found = self._ask(uuid, "amdsmi_get_gpu_process_list", handle)
        if not isinstance(found, list):
            return None
        items = [item for item in found if isinstance(item, dict) and isinstance(item.get("pid"), int)]
        return tuple(GpuProcess(item["pid"], _number(item.get("mem"), 2**44)) for item in items)

    def _energy(self, uuid: str, handle: Any) -> float | None:  # noqa: ANN401
        fields = self._fields(uuid, "amdsmi_get_energy_count", handle)
        count, step = (
            _number(fields.get("energy_accumulator"), 2**63),
            _number(fields.get("counter_resolution"), 1e6),
        )
        return count * step / 1e6 if count is not None and step else None

    def _fields(self, gpu: str, function: str, *arguments: Any) -> dict[str, Any]:  # noqa: ANN401
        answer = self._ask(gpu, function, *arguments)
        return answer if isinstance(answer, dict) else {}

    def _ask(self, gpu: str, function: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function of amdsmi; None if it has no answer, or this release has no such function."""
        call = getattr(self._smi, function, None)
        if call is None:
            return None
        self._watch(gpu, function)
        try:
            return call(*arguments)
        except self._smi.AmdSmiLibraryException as error:
            if error.get_error_code() in _NO_DRIVER:
                raise self._unavailable(error) from None
            self._error = error.get_error_info(detailed=False).removeprefix("AMDSMI_STATUS_")[:64]
            return None
        except self._smi.AmdSmiException:
            return None

    def _unavailable(self, error: Exception) -> GpusUnavailableError:
        return GpusUnavailableError(
            f"The AMD GPUs of this node cannot be read: amdsmi says '{' '.join(str(error).split())}'.\n"
            "Does `amd-smi list` work here? Without it the driver (amdgpu) is not loaded."
        )


def _power(fields: dict[str, Any]) -> float | None:
    """The power now, or its mean of the last second: each model tells one of them, and 0 or N/A for the other."""
    for name in ("current_socket_power", "average_socket_power", "socket_power"):
        value = _number(fields.get(name), 10_000)
        if value:
            return float(value)
    return None


def _number(value: Any, highest: float) -> Any:  # noqa: ANN401 - int or float, as it came
    """A number that can be; "N/A", and what stands for it in older releases (the greatest of its type), is None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= highest and value != _MAX_UINT32 else None
