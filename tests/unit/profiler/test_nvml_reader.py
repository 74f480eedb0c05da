"""The product's reader and sampler over the emulated NVML: true values, n/a instead of 0, and drivers that hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from profiler.gpu import GpuIdentity, GpuProcess, GpuReading, GpusUnavailableError
from profiler.nvml import NvmlReader, history
from profiler.sampler import GpuSampler
from profiler.sampler_child import CallPage
from tests.nvml_helper import NODE, Emulation, emulation, nvml_forks, nvml_library

__all__ = ["emulation", "nvml_forks", "nvml_library"]

MIB = 1024**2

_READ = """
import sys
import msgspec
from profiler.nvml import NvmlReader
reader = NvmlReader()
sys.stdout.buffer.write(msgspec.json.encode([reader.read(gpu) for gpu in reader.gpus()]))
reader.close()
"""


def read(emulation: Emulation) -> list[GpuReading]:
    return msgspec.json.decode(emulation.run(_READ), type=list[GpuReading])


@pytest.mark.slow
def test_a_gpu_at_work(emulation: Emulation) -> None:
    emulation.gpus.set(NODE, 1, ecc_corrected_volatile=7, ecc_uncorrected_volatile=2, throttle_reasons=0x44)
    emulation.load_file(1, os.getpid(), "utilization 85\nmemory_mib 4000\n")
    found = read(emulation)[1]
    assert found.energy_j is not None
    assert replace(found, energy_j=None, recent=None) == GpuReading(
        gpu=GpuIdentity(
            uuid=str(emulation.gpus.state(NODE, 1)["uuid"]),
            minor=1,
            name="NVIDIA A100-SXM4-80GB",
            pci="00000000:02:00.0",
        ),
        utilisation=85,
        memory_used_bytes=4000 * MIB,
        memory_total_bytes=81920 * MIB,
        power_w=320.57,
        power_limit_w=400.0,
        temperature_c=64,
        clock_sm_mhz=1410,
        clock_sm_max_mhz=1410,
        clock_memory_mhz=1593,
        throttle=("sw_power_cap", "hw_thermal"),
        ecc_corrected=7,
        ecc_uncorrected=2,
        processes=(GpuProcess(os.getpid(), 4000 * MIB),),
        xids=(),
        remap_pending=False,
        remap_failed=False,
        rows_remapped=0,
        nvlinks=(True,) * 12,
    )


def test_the_health_of_a_gpu(emulation: Emulation) -> None:
    emulation.gpus.set(
        NODE, 1, remapped_uncorrected=3, remap_pending=1, remap_failed=1, nvlink_2=0, nvlinks=4
    )
    emulation.gpus.set(NODE, 2, retirement_pending=1, nvlinks="NOT_SUPPORTED", remap_pending=4294967295)
    first, second = read(emulation)[1:]
    assert (first.remap_pending, first.remap_failed, first.rows_remapped) == (True, True, 3)
    assert (first.nvlinks, first.retirement_pending) == ((True, True, False, True), None)
    assert (second.nvlinks, second.retirement_pending, second.remap_pending) == (None, True, None)


_FOLLOW = """
import sys, time
import msgspec
from profiler.nvml import NvmlReader
reader = NvmlReader()
looks, at = [], []
for line in sys.stdin:
    reading = reader.read(reader.gpus()[1])
    looks.append(reading), at.append(time.monotonic())
    print(flush=True)
sys.stdout.buffer.write(msgspec.json.encode([looks, at]))
"""


def test_the_drivers_samples_are_had_after_the_clock_was_set_back() -> None:
    """They bear the node's time: those of before the step would be the newest for as long as it was."""
    now = time.time()
    there = [(now + 3600, 99), (now - 2, 10), (now - 1, 20)]
    reader = NvmlReader.__new__(NvmlReader)
    reader._sampled = {"GPU-a": int((now + 3600) * 1e6)}

    def ask(_gpu: str, _function: str, _handle: object, _kind: int, since: int) -> object:
        samples = [
            SimpleNamespace(timeStamp=int(at * 1e6), sampleValue=SimpleNamespace(uiVal=value))
            for at, value in there
            if at * 1e6 > since
        ]
        return (1, samples) if samples else None

    reader._ask = ask  # type: ignore[assignment]
    found = reader._recent("GPU-a", None, 30.0)
    assert found is not None and [value for _, value in found] == [20, 30]
    assert reader._sampled["GPU-a"] == int((now - 1) * 1e6)


@pytest.mark.slow
def test_what_was_between_two_readings_is_told_by_the_drivers_own_samples(emulation: Emulation) -> None:
    child = emulation.popen("-c", _FOLLOW, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    requests, answers = child.stdin, child.stdout
    assert requests is not None and answers is not None

    def look() -> None:
        print(file=requests, flush=True)
        answers.readline()

    look()
    time.sleep(1.0)  # spans of time are what is measured here
    started = time.monotonic()
    path = emulation.load_file(1, os.getpid(), "utilization 80\n")
    time.sleep(2.0)
    path.unlink()
    loaded = time.monotonic() - started
    time.sleep(1.0)
    look()
    look()
    out, _ = child.communicate(timeout=20)
    (_, second, third), at = msgspec.json.decode(out, type=tuple[list[GpuReading], list[float]])
    assert second.utilisation == 0 and second.recent is not None
    known = [value for _, value in second.recent]
    assert known in ([0, 80, 0], [80, 0])  # the first samples may be missing
    assert dict(zip(known, second.recent, strict=True))[80][0] == pytest.approx(loaded, abs=0.8)
    assert sum(seconds for seconds, _ in second.recent) == pytest.approx(at[1] - at[0], abs=0.8)
    assert third.recent is not None and sum(seconds for seconds, _ in third.recent) < 1.0
    idle, busy = 62.0, 62.0 + 0.9 * 338 * 0.8
    assert second.energy_j == pytest.approx(busy * loaded + idle * (at[1] - at[0] - loaded), rel=0.25)


# samples (tenths of a second, per cent), the utilisation now, the time now in tenths -> (tenths, per cent)
HISTORIES = [
    ([(10, 5), (12, 80), (14, 80), (16, 0)], 0, 17, [(4, 80), (3, 0)]),
    ([(10, 5)], 70, 12, [(2, 70)]),
    ([(10, 5), (12, 80)], 80, 11, [(2, 80)]),  # the clock was set back
    ([(10, 5), (12, 80), (14, 4294967295), (16, 20)], 20, 16, [(2, 20)]),  # no value: a hole
    ([(10, 5), (12, 80), (112, 90), (114, 20)], 30, 115, [(2, 20), (1, 30)]),  # a hole of ten seconds
    ([(10, 5), (12, 80)], 80, 500, None),  # nothing of late
]


@pytest.mark.parametrize(("samples", "now", "at", "expected"), HISTORIES)
def test_the_drivers_samples_as_time(
    samples: list[tuple[int, int]], now: int, at: int, expected: list[tuple[int, int]] | None
) -> None:
    found = history([(10_000_000 + tenth * 100_000, value) for tenth, value in samples], now, 10 + at / 10)
    assert (found is None) == (expected is None)
    for (seconds, value), (tenths, wanted) in zip(found or (), expected or (), strict=True):
        assert value == wanted and seconds == pytest.approx(tenths / 10)


def test_a_driver_that_keeps_no_samples(emulation: Emulation) -> None:
    emulation.gpus.set_node(NODE, sample_period_ms=None)
    found = read(emulation)[1]
    assert (found.recent, found.energy_j, found.utilisation) == (None, None, 0)


KEYS = {
    "utilization": ["utilisation"],
    "memory_used_mib": ["memory_used_bytes", "memory_total_bytes"],
    "power_mw": ["power_w"],
    "power_limit_mw": ["power_limit_w", "power_w"],  # without a limit the emulator cannot derive the power
    "temperature_c": ["temperature_c"],
    "clock_sm_mhz": ["clock_sm_mhz"],
    "clock_mem_mhz": ["clock_memory_mhz"],
    "max_clock_sm_mhz": ["clock_sm_max_mhz"],
    "throttle_reasons": ["throttle"],
    "ecc_corrected_volatile": ["ecc_corrected"],
    "ecc_mode": ["ecc_corrected", "ecc_uncorrected"],
    "remap_failed": ["remap_failed", "remap_pending", "rows_remapped"],
    "nvlinks": ["nvlinks"],
    "nvlink_0": ["nvlinks"],
}


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "UNKNOWN", "NO_DATA"])
@pytest.mark.parametrize(("key", "fields"), KEYS.items())
def test_what_nvml_does_not_tell_is_none_and_the_rest_is_told(
    emulation: Emulation, key: str, fields: list[str], error: str
) -> None:
    emulation.gpus.set(NODE, 1, **{key: error})
    reading = read(emulation)[1]
    never = ("fault", "retirement_pending", "recent")  # this model remaps rows; there is no last reading
    unknown = [
        name
        for name in GpuReading.__dataclass_fields__
        if getattr(reading, name) is None and name not in never
    ]
    assert sorted(unknown) == sorted(fields)


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("utilization", 4294967295, "utilisation"),  # NVML_VALUE_NOT_AVAILABLE
        ("utilization", 101, "utilisation"),
        ("power_mw", 4294967295, "power_w"),
        ("clock_sm_mhz", 4294967295, "clock_sm_mhz"),
        ("temperature_c", 65535, "temperature_c"),
        ("ecc_corrected_volatile", 18446744073709551615, "ecc_corrected"),
        ("ecc_corrected_volatile", 14_000_000_000_000_000, "ecc_corrected"),  # DCGM's blank
        ("memory_total_mib", 0, "memory_total_bytes"),
    ],
)
def test_a_value_that_cannot_be_is_none(emulation: Emulation, key: str, value: int, field: str) -> None:
    emulation.gpus.set(NODE, 1, **{key: value})
    assert getattr(read(emulation)[1], field) is None


def test_gpus_are_told_by_device_file_and_uuid_whatever_nvmls_order(emulation: Emulation) -> None:
    straight = {item.gpu.minor: item.gpu.uuid for item in read(emulation)}
    emulation.gpus.create([NODE], 3, reverse_pci=True)
    emulation.load_file(0, os.getpid(), "utilization 10\n")
    backwards = read(emulation)
    assert [item.gpu.minor for item in backwards] == [2, 1, 0]
    assert {item.gpu.minor: item.gpu.uuid for item in backwards} == straight
    assert [item.utilisation for item in backwards] == [0, 0, 10]


def test_mig_instances_stand_apart(emulation: Emulation) -> None:
    uuids = emulation.gpus.mig(NODE, 1, "3g.40gb", "1g.10gb")
    emulation.load_file(1, os.getpid(), "utilization 50\nmemory_mib 2000\ngpu_instance 8\n")
    whole, first, second = read(emulation)[1:4]
    assert whole.gpu.partitioned and whole.utilisation is None and whole.memory_used_bytes == 2000 * MIB
    assert (first.gpu.uuid, second.gpu.uuid) == uuids
    assert second.gpu.minor == 1 and second.gpu.physical_uuid == whole.gpu.uuid
    assert second.gpu.mig is not None and second.gpu.mig.gpu_instance == 8
    assert (first.memory_used_bytes, second.memory_used_bytes) == (0, 2000 * MIB)
    assert second.memory_total_bytes == 9728 * MIB
    assert first.processes == () and [item.pid for item in second.processes or ()] == [os.getpid()]
    assert second.utilisation is None and second.power_w is None and second.xids is None


@pytest.mark.parametrize("fault", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_gpu_lost_half_way_is_a_fault_and_the_others_go_on(emulation: Emulation, fault: str) -> None:
    emulation.gpus.set(NODE, 1, temperature_c=fault)
    readings = read(emulation)
    assert readings[1] == GpuReading(readings[1].gpu, fault=fault, xids=())
    assert [item.fault for item in readings] == [None, fault, None]


def test_drivers_of_old_and_new_names(emulation: Emulation) -> None:
    emulation.load_file(1, os.getpid(), "utilization 85\nmemory_mib 4000\n")
    for function in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
    ):
        emulation.gpus.fail(NODE, 1, function, "FUNCTION_NOT_FOUND")
    found = read(emulation)[1]
    assert found.throttle == () and found.processes == (GpuProcess(os.getpid(), 4000 * MIB),)
    assert found.memory_used_bytes == (4000 + 614) * MIB  # the old structure counts what is reserved as used


def test_no_gpu_here_says_so(emulation: Emulation) -> None:
    with pytest.raises(GpusUnavailableError, match=r"(?s)NVML says .*nvidia-smi"):
        NvmlReader()  # this process has no NVML library, or no driver


# --- the sampler ---


@pytest.fixture
def sampler(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuSampler]:
    """A sampler whose children find the emulation; it looks at a hanging GPU again after 0.5 s."""
    for key, value in emulation.env.items():
        monkeypatch.setenv(key, value)
    with GpuSampler(deadline=1.0, retry_after=0.5) as made:
        yield made


def test_samples_follow_the_gpus(emulation: Emulation, sampler: GpuSampler) -> None:
    first = sampler.sample()
    emulation.gpus.set(NODE, 2, utilization=40)
    emulation.gpus.xid(NODE, 2, 79)
    second, third = sampler.sample(), sampler.sample()
    assert (first.state, second.state) == ("ok", "ok")
    assert [item.utilisation for item in first.readings] == [0, 0, 0]
    assert [item.utilisation for item in second.readings] == [0, 0, 40]
    assert [[item.xids for item in sample.readings] for sample in (first, second, third)] == [
        [(), (), ()],
        [(), (), (79,)],
        [(), (), ()],
    ]
    assert first.at < second.at < third.at


def test_a_hanging_call_is_abandoned_named_and_the_other_gpus_go_on(
    emulation: Emulation, sampler: GpuSampler
) -> None:
    uuids = [item.gpu.uuid for item in sampler.sample().readings]
    with emulation.gpus.hang(NODE, 1, "nvmlDeviceGetTemperature"):
        started = time.monotonic()
        hung = sampler.sample()
        assert time.monotonic() - started < 5  # and not for ever
        assert (hung.state, hung.hung) == ("hung", (uuids[1],))
        assert f"nvmlDeviceGetTemperature on {uuids[1]} within 1 s" in hung.detail
        assert [item.gpu.uuid for item in hung.readings] == uuids[:1]

        started = time.monotonic()
        without = sampler.sample()
        assert without.state == "ok" and without.hung == (uuids[1],)
        assert [item.gpu.uuid for item in without.readings] == [uuids[0], uuids[2]]
    time.sleep(max(0.0, started + 0.5 - time.monotonic()))  # until the sampler looks at it again
    again = sampler.sample()
    assert (again.state, again.hung, len(again.readings)) == ("ok", (), 3)


def test_a_driver_that_hangs_at_start_costs_one_deadline_not_one_each_time(
    emulation: Emulation, sampler: GpuSampler
) -> None:
    with emulation.gpus.hang(NODE, None, "nvmlInitWithFlags"):
        assert sampler.sample().state == "hung"
        started = time.monotonic()
        quick = sampler.sample()
        assert time.monotonic() - started < 0.3
        assert (quick.state, quick.readings) == ("hung", ()) and "nvmlInit" in quick.detail


def test_no_process_is_left_when_the_sampler_closes_or_hangs(
    emulation: Emulation, sampler: GpuSampler
) -> None:
    sampler.sample()
    with emulation.gpus.hang(NODE, 1, "nvmlDeviceGetTemperature"):
        sampler.sample()
        sampler.sample()
        sampler.close()
    assert _children(os.getpid()) == []


def test_a_child_that_dies_is_replaced(sampler: GpuSampler) -> None:
    sampler.sample()
    (child,) = _children(os.getpid())
    os.kill(child, signal.SIGKILL)
    failed, again = sampler.sample(), sampler.sample()
    assert failed.state == "unavailable" and "signal 9" in failed.detail
    assert "failed in start" in failed.detail  # and in no call of the look before
    assert again.state == "ok"


def test_a_driver_that_goes_and_comes_back(emulation: Emulation, sampler: GpuSampler) -> None:
    assert sampler.sample().state == "ok"
    emulation.gpus.set(NODE, 0, status="UNINITIALIZED")
    gone = sampler.sample()
    assert (gone.state, gone.readings) == ("unavailable", ()) and "cannot be read" in gone.detail
    emulation.gpus.set(NODE, 0, status=None)
    assert sampler.sample().state == "ok"


def test_a_gpu_gone_before_the_start_is_counted(emulation: Emulation, sampler: GpuSampler) -> None:
    emulation.gpus.set(NODE, 0, status="GPU_IS_LOST")
    sample = sampler.sample()
    assert (sample.state, len(sample.readings), sample.unreachable) == ("ok", 2, 1)


def test_the_child_ends_with_its_parent_even_in_a_hanging_call(emulation: Emulation) -> None:
    script = (
        "from profiler.sampler import GpuSampler; s = GpuSampler(deadline=60); s.sample(); "
        "print('ready', flush=True); input(); s.sample()"
    )
    parent = emulation.popen("-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None and parent.stdout.readline() == "ready\n"
    (child,) = _children(parent.pid)
    ended = os.pidfd_open(child)
    try:
        with emulation.gpus.hang(NODE, 1, "nvmlDeviceGetTemperature"):
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert not select.select([ended, parent.stdout.fileno()], [], [], 0.5)[0]  # it hangs
            parent.kill()
            parent.wait()
            assert select.select([ended], [], [], 5)[0]
    finally:
        os.close(ended)


def test_a_child_that_nobody_listens_to_any_more_ends_without_a_word() -> None:
    _, page = CallPage.made()
    heard, answers = os.pipe()
    os.close(heard)
    argv = [sys.executable, "-I", "-m", "profiler.sampler_child", str(page)]
    try:
        done = subprocess.run(argv, input=b"[]\n", stdout=answers, stderr=subprocess.PIPE, pass_fds=(page,))
    finally:
        os.close(answers)
        os.close(page)
    assert (done.returncode, done.stderr) == (0, b"")


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
            if int(fields[1]) == pid and fields[0] != "Z" and "sampler_child" in command:
                found.append(int(stat.parent.name))
    return found


# --- the command ---


def test_the_command_counts_until_its_input_ends(emulation: Emulation) -> None:
    emulation.gpus.set(NODE, 2, power_mw="NOT_SUPPORTED")
    load = subprocess.Popen(["sleep", "600"])
    emulation.load_file(1, load.pid, "utilization 80\nmemory_mib 4000\n")
    argv = ("-m", "profiler.sampler", "--interval", "0.1", "--until-eof", "--json")
    # A span of time is what is measured here: a longer one where the machine is slow
    for span in (1.5, 6.0, 24.0):
        child = emulation.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        time.sleep(span)
        out, _ = child.communicate(timeout=60)
        report = json.loads(out)
        if report["gpus"] and report["gpus"][1]["seconds"] > 0.5:
            break
    load.kill()
    load.wait()
    assert (child.returncode, report["node"], report["state"]) == (0, NODE, "ok")
    idle, busy, unmetered = report["gpus"]
    assert [gpu["minor"] for gpu in report["gpus"]] == [0, 1, 2]
    assert (busy["utilisation_mean"], busy["utilisation_busy_mean"]) == (80, 80)
    assert (busy["memory_peak_bytes"], busy["power_mean_w"]) == (4000 * MIB, 305.36)
    assert busy["samples"] >= 2 and busy["busy_seconds"] == busy["seconds"] > 0.5
    assert (idle["busy_seconds"], idle["utilisation_busy_mean"]) == (0, None)
    assert unmetered["power_mean_w"] is None


@pytest.mark.parametrize(
    ("argv", "env", "code", "says"),
    [
        (["--seconds", "0.2", "--interval", "0.1"], {}, 0, "0.0 of 80 GiB"),
        (["--seconds", "0.1"], {"GSUB_EMU_NODE": "login"}, 1, "Driver Not Loaded"),
        (["--interval", "0"], {}, 2, ""),
        (["--seconds", "soon"], {}, 2, ""),
    ],
)
def test_the_command_for_people(
    emulation: Emulation, argv: list[str], env: dict[str, str], code: int, says: str
) -> None:
    command: list[Any] = [sys.executable, "-m", "profiler.sampler", *argv]
    done = subprocess.run(command, env={**emulation.env, **env}, capture_output=True, text=True, timeout=20)
    assert done.returncode == code
    assert says in done.stdout


def test_the_command_tells_what_it_has_when_terminated(emulation: Emulation) -> None:
    argv = ("-m", "profiler.sampler", "--interval", "0.1", "--json")
    for seconds in (1.0, 4.0, 16.0):  # until its first sample, which nothing outside it shows
        child = emulation.popen(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        time.sleep(seconds)
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=10)
        found = json.loads(out)["gpus"]
        if found:
            break
    assert len(found) == 3
