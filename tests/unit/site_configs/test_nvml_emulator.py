"""The emulated NVML under the real nvidia-ml-py: each value, each way to refuse, and files that cannot be trusted."""

from __future__ import annotations

import ast
import os
import re
import signal
import stat
import subprocess
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster.nvml import BuildError, EmulatedGpus, build, copied
from tests.nvml_helper import NODE, ROOT, Emulation, emulation, nvml_forks, nvml_library

__all__ = ["emulation", "nvml_forks", "nvml_library"]

MIB = 1024**2
GPU = {"gpu": 1}
MEMORY_V2 = 0x02000028
CLOCK_SM, CLOCK_MEM = 1, 2
CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE = 0, 1, 0, 1

# (what is set, the call, the answer): an idle GPU first, then each value.
VALUES: list[tuple[dict[str, Any], list[Any], Any]] = [
    ({}, ["nvmlDeviceGetCount"], 3),
    ({}, ["nvmlSystemGetDriverVersion"], "550.90.07"),
    ({}, ["nvmlSystemGetNVMLVersion"], "12.550.90.07"),
    ({}, ["nvmlSystemGetCudaDriverVersion"], 12040),
    ({}, ["nvmlSystemGetCudaDriverVersion_v2"], 12040),
    ({}, ["nvmlDeviceGetIndex", GPU], 1),
    ({}, ["nvmlDeviceGetMinorNumber", GPU], 1),
    ({"minor": 7}, ["nvmlDeviceGetMinorNumber", GPU], 7),
    ({}, ["nvmlDeviceGetName", GPU], "NVIDIA A100-SXM4-80GB"),
    ({"serial": "0042"}, ["nvmlDeviceGetSerial", GPU], "0042"),
    ({"uuid": "GPU-here"}, ["nvmlDeviceGetUUID", GPU], "GPU-here"),
    ({"uuid": "GPU-here"}, ["nvmlDeviceGetHandleByUUID", "GPU-here"], "GPU-here"),
    ({"uuid": "GPU-here"}, ["nvmlDeviceGetHandleByUUID", "GPU-not"], "NOT_FOUND"),
    ({"uuid": "GPU-here"}, ["nvmlDeviceGetHandleByPciBusId", "0000:02:00.0"], "GPU-here"),
    ({"uuid": "GPU-here"}, ["nvmlDeviceGetHandleByPciBusId", "00000000:02:00.0"], "GPU-here"),
    ({}, ["nvmlDeviceGetHandleByPciBusId", "0000:09:00.0"], "NOT_FOUND"),
    ({}, ["nvmlDeviceGetHandleByPciBusId", "02:00"], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetHandleByIndex", 3], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetUtilizationRates", GPU], {"gpu": 0, "memory": 0}),
    (
        {"utilization": 73, "memory_utilization": 41},
        ["nvmlDeviceGetUtilizationRates", GPU],
        {"gpu": 73, "memory": 41},
    ),
    ({"power_mw": 123_456}, ["nvmlDeviceGetPowerUsage", GPU], 123_456),
    ({}, ["nvmlDeviceGetPowerUsage", GPU], 62_000),
    ({"utilization": 100}, ["nvmlDeviceGetPowerUsage", GPU], 62_000 + 338_000 * 9 // 10),
    ({"power_limit_mw": 250_000}, ["nvmlDeviceGetEnforcedPowerLimit", GPU], 250_000),
    ({}, ["nvmlDeviceGetPowerManagementLimit", GPU], 400_000),
    ({}, ["nvmlDeviceGetTemperature", GPU, 0], 30),
    ({"utilization": 50}, ["nvmlDeviceGetTemperature", GPU, 0], 50),
    ({"temperature_c": 91}, ["nvmlDeviceGetTemperature", GPU, 0], 91),
    ({"temperature_c": 91}, ["nvmlDeviceGetTemperatureV", GPU, 0], 91),
    ({}, ["nvmlDeviceGetTemperature", GPU, 5], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetClockInfo", GPU, CLOCK_SM], 210),
    ({"utilization": 1}, ["nvmlDeviceGetClockInfo", GPU, CLOCK_SM], 1410),
    ({"clock_sm_mhz": 765}, ["nvmlDeviceGetClockInfo", GPU, CLOCK_SM], 765),
    ({}, ["nvmlDeviceGetClockInfo", GPU, CLOCK_MEM], 1593),
    ({}, ["nvmlDeviceGetMaxClockInfo", GPU, CLOCK_SM], 1410),
    ({}, ["nvmlDeviceGetClockInfo", GPU, 9], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetCurrentClocksEventReasons", GPU], 1),
    ({"utilization": 5}, ["nvmlDeviceGetCurrentClocksEventReasons", GPU], 0),
    ({"throttle_reasons": 0x48}, ["nvmlDeviceGetCurrentClocksEventReasons", GPU], 0x48),
    ({"throttle_reasons": 0x48}, ["nvmlDeviceGetCurrentClocksThrottleReasons", GPU], 0x48),
    ({}, ["nvmlDeviceGetPersistenceMode", GPU], 1),
    ({"performance_state": 8}, ["nvmlDeviceGetPerformanceState", GPU], 8),
    ({}, ["nvmlDeviceGetEccMode", GPU], [1, 1]),
    ({"ecc_mode_pending": 0}, ["nvmlDeviceGetEccMode", GPU], [1, 0]),
    ({"ecc_corrected_volatile": 3}, ["nvmlDeviceGetTotalEccErrors", GPU, CORRECTED, VOLATILE], 3),
    ({"ecc_uncorrected_aggregate": 4}, ["nvmlDeviceGetTotalEccErrors", GPU, UNCORRECTED, AGGREGATE], 4),
    ({"ecc_uncorrected_volatile": 5}, ["nvmlDeviceGetMemoryErrorCounter", GPU, UNCORRECTED, VOLATILE, 2], 5),
    ({}, ["nvmlDeviceGetMemoryErrorCounter", GPU, UNCORRECTED, VOLATILE, 3], "NOT_SUPPORTED"),
    ({"ecc_mode": 0}, ["nvmlDeviceGetTotalEccErrors", GPU, CORRECTED, VOLATILE], "NOT_SUPPORTED"),
    ({}, ["nvmlDeviceGetTotalEccErrors", GPU, 2, VOLATILE], "INVALID_ARGUMENT"),
    ({"remapped_uncorrected": 2, "remap_pending": 1}, ["nvmlDeviceGetRemappedRows", GPU], [0, 2, 1, 0]),
    ({}, ["nvmlDeviceGetRetiredPagesPendingStatus", GPU], "NOT_SUPPORTED"),
    ({"retirement_pending": 1}, ["nvmlDeviceGetRetiredPagesPendingStatus", GPU], 1),
    ({}, ["nvmlDeviceGetNvLinkState", GPU, 11], 1),
    ({"nvlink_3": 0}, ["nvmlDeviceGetNvLinkState", GPU, 3], 0),
    ({}, ["nvmlDeviceGetNvLinkState", GPU, 12], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetMigMode", GPU], [0, 0]),
    ({}, ["nvmlDeviceGetMaxMigDeviceCount", GPU], 7),
    ({}, ["nvmlDeviceGetMigDeviceHandleByIndex", GPU, 0], "NOT_SUPPORTED"),
    ({}, ["nvmlDeviceIsMigDeviceHandle", GPU], 0),
    ({}, ["nvmlDeviceGetGpuInstanceId", GPU], "INVALID_ARGUMENT"),
    ({}, ["nvmlDeviceGetAttributes", GPU], "NOT_SUPPORTED"),
    ({}, ["nvmlDeviceGetComputeRunningProcesses", GPU], []),
    ({}, ["nvmlDeviceGetSupportedEventTypes", GPU], 8),
    ({}, ["nvmlDeviceGetSamples", GPU, 0, 0], "NOT_SUPPORTED"),
    ({}, ["nvmlDeviceGetSamples", GPU, 1, 2**63], "NOT_FOUND"),
    ({}, ["nvmlDeviceGetFanSpeed", GPU], "FUNCTION_NOT_FOUND"),
]


@pytest.mark.parametrize(("values", "call", "answer"), VALUES)
def test_each_value(emulation: Emulation, values: dict[str, Any], call: list[Any], answer: Any) -> None:
    emulation.gpus.set(NODE, 1, **values)
    assert emulation.ask(call) == [answer]


def test_energy_begins_at_nothing(emulation: Emulation) -> None:
    """It grows from the first look on, at an idle GPU's power: so some millijoules by the answer, and no kilojoule."""
    emulation.gpus.set(NODE, 1)
    [energy] = emulation.ask(["nvmlDeviceGetTotalEnergyConsumption", GPU])
    assert 0 <= energy < 1_000_000


def test_memory_in_both_versions(emulation: Emulation) -> None:
    emulation.gpus.set(NODE, 1, memory_base_mib=300)
    old, new = emulation.ask(["nvmlDeviceGetMemoryInfo", GPU], ["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2])
    assert new == {
        "version": MEMORY_V2,
        "total": 81920 * MIB,
        "reserved": 614 * MIB,
        "used": 300 * MIB,
        "free": (81920 - 614 - 300) * MIB,
    }
    assert old == {"total": 81920 * MIB, "used": 914 * MIB, "free": (81920 - 914) * MIB}
    assert emulation.ask(["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2 + 1]) == ["ARGUMENT_VERSION_MISMATCH"]


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "GPU_IS_LOST", "NO_PERMISSION", "UNKNOWN"])
@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("utilization", ["nvmlDeviceGetUtilizationRates", GPU]),
        ("memory_used_mib", ["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2]),
        ("power_mw", ["nvmlDeviceGetPowerUsage", GPU]),
        ("clock_sm_mhz", ["nvmlDeviceGetClockInfo", GPU, CLOCK_SM]),
        ("throttle_reasons", ["nvmlDeviceGetCurrentClocksEventReasons", GPU]),
        ("minor", ["nvmlDeviceGetMinorNumber", GPU]),
        ("name", ["nvmlDeviceGetName", GPU]),
        ("status", ["nvmlDeviceGetUUID", {"gpu": 1}]),
    ],
)
def test_any_value_can_be_an_error(emulation: Emulation, key: str, call: list[Any], error: str) -> None:
    emulation.gpus.set(NODE, 1, **{key: error})
    assert emulation.ask(call) == [error]
    emulation.gpus.clear(NODE, 1)
    assert emulation.ask(call) != [error]


def test_one_function_can_fail(emulation: Emulation) -> None:
    emulation.gpus.fail(NODE, 1, "nvmlDeviceGetUUID", "NO_PERMISSION")
    emulation.gpus.fail(NODE, None, "nvmlDeviceGetCount_v2", "UNKNOWN")
    assert emulation.ask(["nvmlDeviceGetUUID", GPU], ["nvmlDeviceGetName", GPU], ["nvmlDeviceGetCount"]) == [
        "NO_PERMISSION",
        "NVIDIA A100-SXM4-80GB",
        "UNKNOWN",
    ]


def test_order_of_nvml_is_by_pci_address(emulation: Emulation) -> None:
    emulation.gpus.create([NODE], 3, reverse_pci=True)
    minors = emulation.ask(*(["nvmlDeviceGetMinorNumber", {"gpu": index}] for index in range(3)))
    assert minors == [2, 1, 0]


@pytest.mark.parametrize(
    "env",
    [
        {"GSUB_EMU_GPUS": ""},
        {"GSUB_EMU_NODE": "login"},
        {"GSUB_EMU_NODE": "../gpus/n1"},
        {"GSUB_EMU_NODE": ".."},
    ],
)
def test_a_machine_without_gpus_has_no_driver(emulation: Emulation, env: dict[str, str]) -> None:
    assert emulation.ask(env=env) == "DRIVER_NOT_LOADED"


def test_the_node_is_slurmds_unless_told(emulation: Emulation) -> None:
    emulation.gpus.create(["n2"], 1)
    env = {"GSUB_EMU_NODE": "", "SLURMD_NODENAME": "n2"}
    assert emulation.ask(["nvmlDeviceGetCount"], env=env) == [1]
    assert emulation.ask(["nvmlDeviceGetCount"], env={"SLURMD_NODENAME": "n2"}) == [3]


# --- loads ---


def test_loads_add_up_and_show_as_processes(emulation: Emulation) -> None:
    others = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        emulation.load_file(1, others[0].pid, "utilization 30\nmemory_mib 1000\n")
        emulation.load_file(1, others[1].pid, "utilization 40\nmemory_mib 500\npower_mw 90000\n")
        rates, memory, processes, power = emulation.ask(
            ["nvmlDeviceGetUtilizationRates", GPU],
            ["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2],
            ["nvmlDeviceGetComputeRunningProcesses", GPU],
            ["nvmlDeviceGetPowerUsage", GPU],
        )
        assert (rates["gpu"], memory["used"]) == (70, 1500 * MIB)
        assert {item["pid"]: item["usedGpuMemory"] for item in processes} == {
            others[0].pid: 1000 * MIB,
            others[1].pid: 500 * MIB,
        }
        assert power == 62_000 + 90_000 + 338_000 * 9 // 10 * 30 // 100
        assert emulation.ask(["nvmlDeviceGetUtilizationRates", {"gpu": 0}]) == [{"gpu": 0, "memory": 0}]
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert emulation.ask(["nvmlDeviceGetComputeRunningProcesses", GPU]) == [[]]


def test_a_killed_process_counts_for_nothing_even_before_it_is_reaped(emulation: Emulation) -> None:
    process = subprocess.Popen(["sleep", "60"])
    emulation.load_file(1, process.pid, "utilization 30\n")
    assert emulation.ask(["nvmlDeviceGetUtilizationRates", GPU])[0]["gpu"] == 30
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
    assert emulation.ask(["nvmlDeviceGetUtilizationRates", GPU])[0]["gpu"] == 0
    process.wait()


def test_a_reused_process_id_counts_for_nothing(emulation: Emulation) -> None:
    start = int(Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19])
    emulation.load_file(1, os.getpid(), f"utilization 30\nstart {start}\n")
    assert emulation.ask(["nvmlDeviceGetUtilizationRates", GPU])[0]["gpu"] == 30
    emulation.load_file(1, os.getpid(), f"utilization 30\nstart {start - 1}\n")
    assert emulation.ask(["nvmlDeviceGetUtilizationRates", GPU])[0]["gpu"] == 0


@pytest.mark.parametrize(
    ("text", "used", "memory"),
    [
        ("utilization 250\nmemory_mib 999999999\n", 100, 81920 - 614),
        ("utilization 99999999999999999999999\nmemory_mib 18446744073709551615\n", 0, 81920 - 614),
        ("utilization -5\nmemory_mib 1e9\n", 0, 0),
        ("utilization\n\n\nmemory_mib\n", 0, 0),
        ("utilization 20 30\nmemory_mib NOT_SUPPORTED\n", 0, 0),
        ("  utilization\t20\r\nmemory_mib 7", 20, 7),
        ("\0\0\0\xff utilization 20", 0, 0),
        ("", 0, 0),
        ("#" * 600 + "\nutilization 20\n", 0, 0),
        ("utilization 20\n" + "x" * 100_000, 0, 0),
    ],
)
def test_what_a_load_may_say(emulation: Emulation, text: str, used: int, memory: int) -> None:
    emulation.load_file(1, os.getpid(), text)
    rates, info = emulation.ask(
        ["nvmlDeviceGetUtilizationRates", GPU], ["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2]
    )
    assert (rates["gpu"], info["used"]) == (used, memory * MIB)


def test_load_files_that_are_no_plain_files(emulation: Emulation, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("utilization 20\n")
    directory = emulation.gpus.root / NODE / "1" / "load"
    (directory / str(os.getpid())).symlink_to(secret)
    os.mkfifo(directory / str(os.getppid()))  # opened without care, this would block for ever
    (directory / ("1" if os.getppid() != 1 else "2")).mkdir()
    for name in ("0", "-1", "4294967296", "99999999999999999999", "12x", ".1"):
        (directory / name).write_text("utilization 20\n")
    rates, processes = emulation.ask(
        ["nvmlDeviceGetUtilizationRates", GPU], ["nvmlDeviceGetComputeRunningProcesses", GPU]
    )
    assert (rates["gpu"], processes) == (0, [])


def test_a_load_directory_full_of_rubbish_is_read_in_bounded_time(emulation: Emulation) -> None:
    for number in range(6000):
        emulation.load_file(1, f"rubbish{number}", "")
    started = time.monotonic()
    emulation.ask(["nvmlDeviceGetUtilizationRates", GPU])
    assert time.monotonic() - started < 5


# --- malformed state ---


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"power_mw many\npower_limit_mw 1\n", "UNKNOWN"),
        (b"power_mw -1\n", "UNKNOWN"),
        (b"power_mw 99999999999999999999999\n", "UNKNOWN"),
        (b"power_mw\n", "UNKNOWN"),
        (b"", 0),
        (b"\xff\xfe\x00", 0),
        (b"x" * 20_000, "UNKNOWN"),
        (b"power_mw 5", 5),
        (b"power_mw 5\npower_mw 6\n", 5),
        (b"status BURNT\n", "UNKNOWN"),
        (b"mig 0 1\nmig x\nmig\npower_mw 5\n", 5),
        (None, "GPU_IS_LOST"),
    ],
)
def test_malformed_state_is_an_error_or_nothing_never_a_measurement(
    emulation: Emulation, content: bytes | None, answer: Any
) -> None:
    # The list of GPUs is made at nvmlInit: so the file changes afterwards, between the two calls.
    script = (
        "import pynvml, sys; pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(1);"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: print(pynvml.nvmlDeviceGetPowerUsage(gpu))\n"
        "except pynvml.NVMLError as error: print(type(error).__name__.removeprefix('NVMLError_'))\n"
    )
    child = emulation.popen("-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    state = emulation.gpus.root / NODE / "1" / "state"
    state.unlink()
    if content is not None:
        state.write_bytes(content)
    out, _ = child.communicate("\n", timeout=20)
    said = out.strip()
    assert (int(said) if said.isdecimal() else said) == _python_name(answer)


def _python_name(answer: Any) -> Any:
    return {"UNKNOWN": "Unknown", "GPU_IS_LOST": "GpuIsLost"}.get(answer, answer)


# --- MIG, events, hanging ---


def test_mig_instances(emulation: Emulation) -> None:
    uuids = emulation.gpus.mig(NODE, 1, "3g.40gb", "1g.10gb")
    first, second = {"mig": [1, 0]}, {"mig": [1, 1]}
    start = "utilization 50\nmemory_mib 2000\ngpu_instance 8\n"
    emulation.load_file(1, os.getpid(), start)
    answers = emulation.ask(
        ["nvmlDeviceGetMigMode", GPU],
        ["nvmlDeviceGetUUID", first],
        ["nvmlDeviceGetHandleByUUID", uuids[1]],
        ["nvmlDeviceGetName", second],
        ["nvmlDeviceGetGpuInstanceId", second],
        ["nvmlDeviceGetComputeInstanceId", second],
        ["nvmlDeviceIsMigDeviceHandle", second],
        ["nvmlDeviceGetMigDeviceHandleByIndex", GPU, 2],
        ["nvmlDeviceGetUtilizationRates", GPU],
        ["nvmlDeviceGetUtilizationRates", second],
        ["nvmlDeviceGetPowerUsage", second],
    )
    assert answers == [
        [1, 1],
        uuids[0],
        uuids[1],
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        8,
        0,
        1,
        "NOT_FOUND",
        "NOT_SUPPORTED",  # as the real driver: rates are not told with MIG on
        "NOT_SUPPORTED",
        "NOT_SUPPORTED",
    ]
    whole, empty, loaded, attributes, parent, gpu = emulation.ask(
        ["nvmlDeviceGetMemoryInfo", GPU, MEMORY_V2],
        ["nvmlDeviceGetMemoryInfo", first, MEMORY_V2],
        ["nvmlDeviceGetMemoryInfo", second, MEMORY_V2],
        ["nvmlDeviceGetAttributes", second],
        ["nvmlDeviceGetDeviceHandleFromMigDeviceHandle", second],
        ["nvmlDeviceGetUUID", GPU],
    )
    assert [info["used"] // MIB for info in (whole, empty, loaded)] == [2000, 0, 2000]
    assert loaded["total"] == 9728 * MIB
    assert (attributes["gpuInstanceSliceCount"], attributes["memorySizeMB"]) == (1, 9728)
    assert parent == gpu
    emulation.gpus.mig(NODE, 1)
    assert emulation.ask(["nvmlDeviceGetMigMode", GPU]) == [[0, 0]]


_XIDS = """
import pynvml, sys
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
for index in range(3):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
while True:
    try:
        event = pynvml.nvmlEventSetWait_v2(events, 5000)
        print(pynvml.nvmlDeviceGetMinorNumber(event.device), event.eventType, event.eventData, flush=True)
    except pynvml.NVMLError_Timeout:
        break
"""


def test_xid_events_arrive_once_and_only_new_ones(emulation: Emulation) -> None:
    emulation.gpus.xid(NODE, 0, 13)  # before anyone listens: the past
    child = emulation.popen("-c", _XIDS, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    try:
        for gpu, code in ((2, 79), (0, 31), (0, 31)):
            emulation.gpus.xid(NODE, gpu, code)
            assert child.stdout.readline() == f"{gpu} 8 {code}\n"
        with (emulation.gpus.root / NODE / "1" / "xid").open("a") as file:
            file.write("rubbish\n" + "9" * 500 + "\n\n-1\n 48\n48 no\n48")
            file.flush()
            file.write("5\n")
        assert child.stdout.readline() == "1 8 485\n"
        emulation.gpus.clear(NODE, 1)
        emulation.gpus.xid(NODE, 1, 94)
        assert child.stdout.readline() == "1 8 94\n"
    finally:
        child.kill()
        child.wait()


def test_waiting_for_an_event_ends_at_the_timeout(emulation: Emulation) -> None:
    script = _XIDS.replace("5000", "300")
    started = time.monotonic()
    child = emulation.popen("-c", script, stdout=subprocess.PIPE)
    out, _ = child.communicate(timeout=20)
    assert (out, child.returncode) == ("ready\n", 0)
    assert time.monotonic() - started >= 0.3


def test_a_hanging_call_returns_when_released_and_can_be_killed(emulation: Emulation) -> None:
    script = (
        "import pynvml; pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(1); print('ready', flush=True);"
        "print(pynvml.nvmlDeviceGetName(gpu)); print(pynvml.nvmlDeviceGetPowerUsage(gpu))"
    )
    with emulation.gpus.hang(NODE, 1, "nvmlDeviceGetPowerUsage"):
        assert emulation.ask(["nvmlDeviceGetPowerUsage", {"gpu": 0}]) == [62_000]  # another GPU goes on
        released, killed = (emulation.popen("-c", script, stdout=subprocess.PIPE) for _ in range(2))
        assert killed.stdout is not None and killed.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            released.wait(timeout=1)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(timeout=5) == -signal.SIGKILL
    out, _ = released.communicate(timeout=5)
    assert out.endswith("62000\n")


def test_init_can_hang(emulation: Emulation) -> None:
    with emulation.gpus.hang(NODE, None, "nvmlInitWithFlags"):
        child = emulation.popen("-c", "import pynvml; pynvml.nvmlInit()")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1)
    assert child.wait(timeout=5) == 0


def test_states_are_replaced_whole_while_threads_read(emulation: Emulation) -> None:
    script = """
import pynvml, threading, time
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
wrong = []
def read():
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            power = pynvml.nvmlDeviceGetPowerUsage(gpu)
        except pynvml.NVMLError as error:
            power = str(error)
        if power not in (111, 222, 62000):
            wrong.append(power)
threads = [threading.Thread(target=read) for _ in range(4)]
print("ready", flush=True)
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""
    child = emulation.popen("-c", script, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            emulation.gpus.set(NODE, 1, power_mw=111)
            emulation.gpus.set(NODE, 1, power_mw=222)

    writer = threading.Thread(target=write)
    writer.start()
    out, _ = child.communicate(timeout=20)
    stop.set()
    writer.join()
    assert out == "[]\n"


# --- the writer and the compiler ---


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"utilisation": 5}, "no such key"),
        ({"utilization": -1}, "whole number"),
        ({"utilization": "NOT_REALLY"}, "whole number"),
        ({"utilization": 1.5}, "whole number"),
        ({"name": "two\nlines"}, "one line"),
    ],
)
def test_the_writer_refuses_what_the_library_would_not_know(
    emulation: Emulation, values: dict[str, Any], says: str
) -> None:
    before = emulation.gpus.state(NODE, 1)
    with pytest.raises(ValueError, match=says):
        emulation.gpus.set(NODE, 1, **values)
    assert emulation.gpus.state(NODE, 1) == before


def test_the_writer_refuses_unknown_errors_functions_models_profiles(emulation: Emulation) -> None:
    gpus = emulation.gpus
    with pytest.raises(ValueError, match="no such NVML error"):
        gpus.fail(NODE, 1, "nvmlDeviceGetName", "BURNT")
    with pytest.raises(ValueError, match="not the name of an NVML function"):
        gpus.fail(NODE, 1, "strlen")
    with pytest.raises(ValueError, match="no such GPU model"):
        gpus.create(["n9"], 1, "Voodoo2")
    with pytest.raises(ValueError, match="no MIG profile"):
        gpus.mig(NODE, 1, "5g.55gb")
    with pytest.raises(ValueError, match="7 slices"):
        gpus.mig(NODE, 1, "4g.40gb", "4g.40gb")
    assert "n9" not in gpus.nodes()


@pytest.mark.slow
def test_every_error_name_of_the_writer_is_known_to_the_library_and_to_nvidia_ml_py(
    emulation: Emulation,
) -> None:
    from site_configs.devcluster.nvml.statefile import ERRORS

    for error in sorted(ERRORS):
        emulation.gpus.fail(NODE, 1, "nvmlDeviceGetName", error)
        assert emulation.ask(["nvmlDeviceGetName", GPU]) == [error]


def test_uuids_are_of_cluster_node_and_number_alone(tmp_path: Path) -> None:
    def uuids(root: str, cluster: str) -> list[Any]:
        gpus = EmulatedGpus(tmp_path / root)
        gpus.create(["n1", "n2"], 2, cluster=cluster)
        return [gpus.state(node, gpu)["uuid"] for node in ("n1", "n2") for gpu in (0, 1)]

    assert uuids("a", "x") == uuids("b", "x")
    assert len({*uuids("a", "x"), *uuids("a", "y")}) == 8
    assert all(
        re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids("a", "x")
    )


def test_creating_anew_takes_surplus_gpus_away_and_lets_everyone_drive_the_rest(tmp_path: Path) -> None:
    gpus = EmulatedGpus(tmp_path)
    gpus.create(["n1"], 4)
    gpus.create(["n1"], 2)
    assert gpus.nodes() == {"n1": (0, 1)}
    assert (tmp_path / "n1" / "0" / "load").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "n1" / "0" / "state").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
@pytest.mark.needs("compiler")
def test_building_again_does_nothing_and_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(tmp_path)
    made = library.stat().st_ino
    assert build(tmp_path).stat().st_ino == made
    assert build(tmp_path, extra_flags=["-O1"]).stat().st_ino != made
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "libnvidia-ml.so.1",
        "libnvidia-ml.so.1.digest",
    ]
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="apt-get install gcc"):
        build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BuildError, match="failed"):
        build(tmp_path)


@pytest.mark.slow
@pytest.mark.needs("compiler")
def test_it_is_compiled_once_and_copied(tmp_path: Path) -> None:
    cache, one, other = (tmp_path / name for name in ("cache", "one", "other"))
    library = copied(cache, one)
    made, there = (cache / library.name).stat().st_ino, library.stat().st_ino
    assert copied(cache, other).read_bytes() == library.read_bytes() == (cache / library.name).read_bytes()
    assert (cache / library.name).stat().st_ino == made, "nothing was compiled again"
    assert copied(cache, one).stat().st_ino == there, "and nothing copied that is there"
    (one / f"{library.name}.digest").write_text("an earlier source's")
    assert copied(cache, one).stat().st_ino != there
    assert stat.S_IMODE(library.stat().st_mode) == 0o755
    assert sorted(path.name for path in one.iterdir()) == [library.name, f"{library.name}.digest"]


def test_the_library_loads_on_releases_older_than_the_compilers(nvml_library: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", str(nvml_library)], capture_output=True, text=True, check=True
    ).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"@GLIBC_([\d.]+)", listing)}
    assert max(versions) <= (2, 36)


def _nvml_functions_used(*paths: Path) -> set[str]:
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if re.fullmatch(r"nvml[A-Z]\w+", node.value) else set()
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"nvml[A-Z]\w+", node.attr):
                found.add(node.attr)
    return found


def test_every_nvml_name_that_we_use_exists_in_nvidia_ml_py_and_every_function_in_the_emulator(
    nvml_library: Path,
) -> None:
    spec = find_spec("pynvml")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    used = _nvml_functions_used(*(ROOT / "profiler").rglob("*.py"))
    assert len(used) > 20
    assert used <= functions.keys() | constants

    def symbols(name: str) -> set[str]:
        """The library's symbols that a binding reaches, through other bindings too."""
        reached: set[str] = set()
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "_nvmlGetFunctionPointer" and isinstance(node.args[0], ast.Constant):
                    reached.add(str(node.args[0].value))
                elif node.func.id in functions and node.func.id.startswith("nvml") and node.func.id != name:
                    reached |= symbols(node.func.id)
        return reached

    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(nvml_library)], capture_output=True, text=True, check=True
    ).stdout
    exported = set(re.findall(r" T (\w+)", listing))
    wanted = set().union(*(symbols(name) for name in used & functions.keys()))
    assert "nvmlDeviceGetCount_v2" in wanted
    assert wanted <= exported
    assert all(name.startswith("nvml") for name in exported)


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path, emulation: Emulation) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    library = build(tmp_path / "sanitized", extra_flags=flags)
    runtime = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler has no sanitizers")
    emulation.gpus.mig(NODE, 2, "3g.40gb", "1g.10gb")
    emulation.load_file(
        1, os.getpid(), "utilization 250\nmemory_mib 99999999999\npower_mw 18446744073709551615\n"
    )
    emulation.load_file(2, os.getpid(), "x" * 5000)
    (emulation.gpus.root / NODE / "0" / "state").write_bytes(
        b"mig 0 1\nutilization \nfail\nhang\npci ::.\nuuid"
    )
    calls = [call for _, call, _ in VALUES] + [
        [*call[:1], {"mig": [2, 1]}, *call[2:]] for _, call, _ in VALUES if GPU in call
    ]
    hostile = [[*call[:1], {"gpu": 0}, *call[2:]] for _, call, _ in VALUES if GPU in call]
    env = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "LD_LIBRARY_PATH": str(library.parent)}
    assert len(emulation.ask(*calls, *hostile, env=env)) == len(calls) + len(hostile)
