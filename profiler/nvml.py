"""Reads NVIDIA GPUs through NVML, with NVIDIA's own bindings (nvidia-ml-py).

Every value that NVML can refuse is None when it does; so is one outside of what it can be (4294967295 per cent,
1.4e16 watts: the ways in which drivers and DCGM say "blank"). What a GPU is, is its UUID and its device file's number,
never its index. Sources: NVML API reference (device queries, MIG management, event handling).
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpusUnavailableError, MigInstance

_Handle: TypeAlias = Any  # ctypes' pointers and structures: pynvml has no types
_Number: TypeAlias = Any  # int or float, as it came

# Errors of one GPU after which it answers nothing, and errors of the driver as a whole. All others (NOT_SUPPORTED,
# NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA...) make one value unknown.
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
_NO_DRIVER = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")

# nvmlClocksEventReason*, formerly nvmlClocksThrottleReason*: the same bits.
_THROTTLE = {
    0x001: "gpu_idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}

# Newest name first. The unversioned ..RunningProcesses raises something else than NVMLError where it is missing.
_THROTTLE_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_PROCESS_CALLS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")

_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0  # NVML_MEMORY_ERROR_TYPE_*, NVML_VOLATILE_ECC
_TEMPERATURE_GPU = 0
_UTILISATION_SAMPLES, _UNSIGNED = 1, 1  # NVML_GPU_UTILIZATION_SAMPLES, NVML_VALUE_TYPE_UNSIGNED_INT
_MAX_XIDS = 64  # of one drain: a storm must not keep the reader here


@dataclass(frozen=True, slots=True)
class _Metric:
    """A number of a reading: from which function, with which arguments, in what unit, between which bounds."""

    field: str
    function: str
    arguments: tuple[int, ...] = ()
    divisor: int = 1
    highest: float = 0


_METRICS = (
    _Metric("power_w", "nvmlDeviceGetPowerUsage", divisor=1000, highest=10_000),
    _Metric("temperature_c", "nvmlDeviceGetTemperature", (_TEMPERATURE_GPU,), highest=200),
    _Metric("clock_sm_mhz", "nvmlDeviceGetClockInfo", (_CLOCK_SM,), highest=20_000),
    _Metric("clock_memory_mhz", "nvmlDeviceGetClockInfo", (_CLOCK_MEMORY,), highest=50_000),
    _Metric("energy_j", "nvmlDeviceGetTotalEnergyConsumption", divisor=1000, highest=2**53),
    _Metric("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (_CORRECTED, _VOLATILE), highest=2**53),
    _Metric("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE), highest=2**53),
)
_SLOW_METRICS = (
    _Metric("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", divisor=1000, highest=10_000),
    _Metric("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_SM,), highest=20_000),
)
_MEMORY_HIGHEST = 2**44  # 16 TiB
_LONGEST_SAMPLE = (
    5.0  # seconds: the driver samples every 1/6 to 1 s; a longer hole in its buffer is no sample
)
_NVLINKS_HIGHEST = 36  # NVML_NVLINK_MAX_LINKS
_HEALTH_EVERY = (
    30.0  # seconds: each link is a call of its own, and bad memory waits for a reset of the GPU anyway
)


class _LostError(Exception):
    """The GPU does not answer any more; the argument is NVML's name for it."""


class NvmlReader:
    """A `GpuReader` over NVML.

    `watch` is told of each driver call, with the GPU's UUID ("" for a call that belongs to none) and the function's
    name, before it is made: who supervises this reader can say afterwards which call did not return.

    Raises GpusUnavailableError when there is no driver or no library. Not for several threads at once.
    """

    def __init__(self, watch: Callable[[str, str], None] = lambda _gpu, _function: None) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._watch = watch
        self._names = {
            getattr(pynvml, f"NVML_ERROR_{name}"): name
            for name in (*_LOST, *_NO_DRIVER, "NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
        }
        self._handles: dict[str, Any] = {}
        self._physical: list[GpuIdentity] = []
        self._by_address: dict[int | None, str] = {}
        self._pending_xids: dict[str, list[int]] = defaultdict(list)
        self._event_set: Any = None
        self._watched: set[str] = set()
        self._sampled: dict[
            str, int
        ] = {}  # UUID -> time of the last sample seen, in microseconds since the epoch
        self._health: dict[str, tuple[float, dict[str, Any]]] = {}  # UUID -> (until, fields of a reading)
        self.unreachable = 0
        """GPUs that the driver counts but does not hand out: fallen off the bus before this reader began."""
        try:
            watch("", "nvmlInit")
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise self._unavailable(error) from None
        self._enumerate()
        self._watch_xids()

    def gpus(self, leave_alone: Collection[str] = ()) -> tuple[GpuIdentity, ...]:
        """The GPUs that there were when this reader began, each followed by the MIG instances that it has now.

        A look begins with it: Xid events up to now are told by the readings that follow.
        """
        self._drain_xids()
        found: list[GpuIdentity] = []
        for gpu in self._physical:
            if gpu.uuid in leave_alone:
                continue
            instances: list[GpuIdentity] = []
            partitioned = False
            with suppress(_LostError):  # the whole GPU is still listed: its reading tells the fault
                partitioned = self._mig_enabled(gpu)
                instances = list(self._instances(gpu)) if partitioned else []
            found.append(replace(gpu, partitioned=partitioned))
            found.extend(instances)
        return tuple(found)

    def read(self, gpu: GpuIdentity) -> GpuReading:
        """What a GPU or a MIG instance does now. Raises GpusUnavailableError if the whole driver has gone."""
        try:
            reading = self._read_instance(gpu) if gpu.mig else self._read_gpu(gpu)
        except _LostError as error:
            reading = GpuReading(gpu, fault=str(error))
        if gpu.mig:
            return reading
        known = gpu.uuid in self._watched
        return replace(reading, xids=tuple(self._pending_xids.pop(gpu.uuid, ())) if known else None)

    def close(self) -> None:
        """Let go of the driver; harmless if it has gone."""
        with suppress(self._nvml.NVMLError):
            if self._event_set is not None:
                self._nvml.nvmlEventSetFree(self._event_set)
            self._nvml.nvmlShutdown()

    # --- the driver ---

    def _ask(self, gpu: str, function: str, *arguments: _Handle) -> _Handle:
        """Call an NVML function; None if it has no answer. Raises _LostError and GpusUnavailableError."""
        self._watch(gpu, function)
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            name = self._names.get(error.value)
            if name in _LOST:
                raise _LostError(name) from None
            if name in _NO_DRIVER:
                raise self._unavailable(error) from None
            return None

    def _ask_first(self, gpu: str, functions: tuple[str, ...], *arguments: _Handle) -> _Handle:
        """The answer of the first of these functions that has one."""
        for function in functions:
            answer = self._ask(gpu, function, *arguments)
            if answer is not None:
                return answer
        return None

    def _unavailable(self, error: Exception) -> GpusUnavailableError:
        return GpusUnavailableError(
            f"The GPUs of this node cannot be read: NVML says '{error}'.\n"
            "Does `nvidia-smi` work here? Without it the driver is not loaded, or not the one of the installed library."
        )

    def _enumerate(self) -> None:
        self._physical.clear()
        self.unreachable = 0
        for index in range(self._ask("", "nvmlDeviceGetCount") or 0):
            try:
                handle = self._ask("", "nvmlDeviceGetHandleByIndex", index)
                uuid = self._ask("", "nvmlDeviceGetUUID", handle) if handle is not None else None
                if uuid is None:
                    self.unreachable += 1
                    continue
                pci = self._ask(uuid, "nvmlDeviceGetPciInfo", handle)
                gpu = GpuIdentity(
                    uuid=uuid,
                    minor=self._ask(uuid, "nvmlDeviceGetMinorNumber", handle),
                    name=self._ask(uuid, "nvmlDeviceGetName", handle) or "unknown",
                    pci=pci.busId if pci is not None else None,
                )
            except _LostError:
                self.unreachable += 1
                continue
            self._physical.append(gpu)
            self._handles[uuid] = handle
            self._by_address[_address(handle)] = uuid

    # --- whole GPUs ---

    def _read_gpu(self, gpu: GpuIdentity) -> GpuReading:
        handle = self._handles[gpu.uuid]
        numbers = {metric.field: self._number(gpu.uuid, metric, handle) for metric in _METRICS}
        rates = self._ask(gpu.uuid, "nvmlDeviceGetUtilizationRates", handle)
        utilisation = _plausible(rates.gpu, 100) if rates is not None else None
        return GpuReading(
            gpu,
            utilisation=utilisation,
            recent=self._recent(gpu.uuid, handle, utilisation),
            throttle=self._throttle(gpu.uuid, handle),
            processes=self._processes(gpu.uuid, handle),
            **numbers,
            **self._memory(gpu.uuid, handle),
            **self._slow(gpu.uuid, handle),
        )

    def _number(self, gpu: str, metric: _Metric, handle: _Handle) -> _Number:
        value = self._ask(gpu, metric.function, handle, *metric.arguments)
        if value is not None and metric.divisor != 1:
            value = value / metric.divisor
        return _plausible(value, metric.highest)

    def _recent(self, gpu: str, handle: _Handle, now: float | None) -> tuple[tuple[float, float], ...] | None:
        """The utilisation since the last reading, from the driver's buffer; None where it keeps none.

        A sample stands for the time since the one before it. What has passed since the newest is as it is `now`.
        """
        latest = (time.time() + _LONGEST_SAMPLE) * 1e6
        last = self._sampled.get(gpu, 0)
        if last > latest:  # the clock was set back: none newer would come for as long as it was
            last = 0
        # The last one seen is asked for again: it is where the first new one begins.
        answer = self._ask(gpu, "nvmlDeviceGetSamples", handle, _UTILISATION_SAMPLES, max(last - 1, 0))
        if answer is None or now is None:
            return None
        kind, samples = answer
        known = (
            sorted((item.timeStamp, item.sampleValue.uiVal) for item in samples if item.timeStamp <= latest)
            if kind == _UNSIGNED
            else []
        )
        if not known:
            return None
        self._sampled[gpu] = known[-1][0]
        return history(known, now, time.time())

    def _memory(self, gpu: str, handle: _Handle) -> dict[str, Any]:
        # Version 2 tells apart what the driver reserves; older drivers (before 510) count it as used.
        memory = self._ask(gpu, "nvmlDeviceGetMemoryInfo", handle, self._nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._ask(gpu, "nvmlDeviceGetMemoryInfo", handle)
        if memory is None or not 0 < memory.total <= _MEMORY_HIGHEST:
            return {}
        used = _plausible(memory.used, memory.total)
        return {"memory_used_bytes": used, "memory_total_bytes": memory.total}

    def _throttle(self, gpu: str, handle: _Handle) -> tuple[str, ...] | None:
        bits = self._ask_first(gpu, _THROTTLE_CALLS, handle)
        if bits is None:
            return None
        return tuple(name for bit, name in _THROTTLE.items() if bits & bit)

    def _processes(self, gpu: str, handle: _Handle) -> tuple[GpuProcess, ...] | None:
        running = self._ask_first(gpu, _PROCESS_CALLS, handle)
        if running is None:
            return None
        return tuple(
            GpuProcess(item.pid, _plausible(item.usedGpuMemory, _MEMORY_HIGHEST)) for item in running
        )

    # --- health ---

    def _slow(self, gpu: str, handle: _Handle) -> dict[str, Any]:
        """What changes slowly and costs many calls, as it was lately."""
        now = time.monotonic()
        until, fields = self._health.get(gpu, (now, {}))
        if now >= until:
            rows = self._ask(gpu, "nvmlDeviceGetRemappedRows", handle)
            _, remapped, pending, failed = rows if rows is not None else (None,) * 4
            retiring = self._ask(gpu, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
            fields = {
                **{metric.field: self._number(gpu, metric, handle) for metric in _SLOW_METRICS},
                "remap_pending": _flag(pending),
                "remap_failed": _flag(failed),
                "rows_remapped": _plausible(remapped, 2**20),
                "retirement_pending": _flag(retiring),
                "nvlinks": self._nvlinks(gpu, handle),
            }
            self._health[gpu] = now + _HEALTH_EVERY, fields
        return fields

    def _nvlinks(self, gpu: str, handle: _Handle) -> tuple[bool, ...] | None:
        """The links are numbered from 0; the driver knows none after the last."""
        links: list[bool] = []
        for link in range(_NVLINKS_HIGHEST):
            active = _flag(self._ask(gpu, "nvmlDeviceGetNvLinkState", handle, link))
            if active is None:
                break
            links.append(active)
        return tuple(links) or None

    # --- MIG ---

    def _mig_enabled(self, gpu: GpuIdentity) -> bool:
        mode = self._ask(gpu.uuid, "nvmlDeviceGetMigMode", self._handles[gpu.uuid])
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _instances(self, gpu: GpuIdentity) -> Iterator[GpuIdentity]:
        """Asked anew each time: a site may cut its GPUs differently between two jobs."""
        parent = self._handles[gpu.uuid]
        for slot in range(self._ask(gpu.uuid, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
            handle = self._ask(gpu.uuid, "nvmlDeviceGetMigDeviceHandleByIndex", parent, slot)
            uuid = self._ask(gpu.uuid, "nvmlDeviceGetUUID", handle) if handle is not None else None
            if uuid is None:  # slots need not be filled from the first on
                continue
            self._handles[uuid] = handle
            yield GpuIdentity(
                uuid=uuid,
                minor=gpu.minor,
                name=self._ask(gpu.uuid, "nvmlDeviceGetName", handle) or gpu.name,
                pci=gpu.pci,
                mig=MigInstance(
                    parent_uuid=gpu.uuid,
                    gpu_instance=self._ask(gpu.uuid, "nvmlDeviceGetGpuInstanceId", handle),
                    compute_instance=self._ask(gpu.uuid, "nvmlDeviceGetComputeInstanceId", handle),
                ),
            )

    def _read_instance(self, gpu: GpuIdentity) -> GpuReading:
        """Memory and processes; NVML tells no utilisation, power or clocks of a MIG instance, so they stay unknown."""
        handle = self._handles[gpu.uuid]
        whole = gpu.physical_uuid
        return GpuReading(gpu, processes=self._processes(whole, handle), **self._memory(whole, handle))

    # --- Xid events ---

    def _watch_xids(self) -> None:
        """Have the driver queue Xid events. A GPU that cannot, or that is lost, has unknown Xids."""
        self._event_set = self._ask("", "nvmlEventSetCreate")
        if self._event_set is None:
            return
        for gpu in self._physical:
            self._watch(gpu.uuid, "nvmlDeviceRegisterEvents")
            with suppress(self._nvml.NVMLError):
                xid = self._nvml.nvmlEventTypeXidCriticalError
                self._nvml.nvmlDeviceRegisterEvents(self._handles[gpu.uuid], xid, self._event_set)
                self._watched.add(gpu.uuid)

    def _drain_xids(self) -> None:
        for _ in range(_MAX_XIDS if self._watched else 0):
            self._watch("", "nvmlEventSetWait")
            try:
                event = self._nvml.nvmlEventSetWait(self._event_set, 0)
            except self._nvml.NVMLError:  # TIMEOUT: no more; GPU_IS_LOST: the GPU's own reading says so
                return
            uuid = self._by_address.get(_address(event.device))
            if uuid is not None:
                self._pending_xids[uuid].append(event.eventData)


def _address(handle: _Handle) -> int | None:
    """Where a handle points: ctypes' pointers do not compare."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def history(samples: list[tuple[int, int]], now: float, at: float) -> tuple[tuple[float, float], ...] | None:
    """What samples (microseconds since the epoch, per cent), in order, tell of the time up to `at`, in seconds.

    (seconds, per cent), oldest first; nothing from before a hole, as it would not be just before the rest.
    """
    steps: list[tuple[float, float]] = [
        ((end - start) / 1e6, value) for (start, _), (end, value) in itertools.pairwise(samples)
    ]
    since = at - samples[-1][0] / 1e6
    if since >= 0:
        steps.append((since, now))
    pieces: list[tuple[float, float]] = []
    for seconds, value in steps:
        if value > 100 or seconds > _LONGEST_SAMPLE:
            pieces.clear()
        elif pieces and pieces[-1][1] == value:
            pieces[-1] = pieces[-1][0] + seconds, value
        else:
            pieces.append((seconds, float(value)))
    return tuple(pieces) or None


def _flag(value: _Number) -> bool | None:
    return bool(value) if value in (0, 1) else None


def _plausible(value: _Number, highest: float) -> _Number:
    return value if value is not None and 0 <= value <= highest else None
