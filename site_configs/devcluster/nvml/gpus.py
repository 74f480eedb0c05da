"""Writes the files from which the emulated NVML library answers.

    gpus = EmulatedGpus(root)
    gpus.create(["n1", "n2"], gpus=8)
    gpus.set("n1", 3, utilization=85, power_mw="NOT_SUPPORTED")
    gpus.xid("n1", 3, 79)

A GPU is ``<root>/<node>/<gpu>/{state,xid,load/}``; docs/emulated-gpus.md has the format.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from site_configs.devcluster.nvml.models import MODELS, GpuModel
from site_configs.devcluster.nvml.statefile import (
    ERRORS,
    NODE_KEYS,
    State,
    Value,
    check,
    function_name,
    merged,
    parse,
    write,
)

# Real drivers sample the utilisation every 1/6 to 1 s.
DRIVER: State = {
    "driver_version": "550.90.07",
    "nvml_version": "12.550.90.07",
    "cuda_version": 12040,
    "sample_period_ms": 200,
}


class EmulatedGpus:
    """The emulated GPUs under one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(
        self,
        nodes: Sequence[str],
        gpus: int,
        model: str = "A100-SXM4-80GB",
        *,
        cluster: str = "dev",
        reverse_pci: bool = False,
    ) -> None:
        """Make (or make anew) `gpus` GPUs on each node; UUIDs depend on cluster, node and number only.

        GPU i stands for the device file ``nvidia<i>``. NVML lists GPUs by PCI address: `reverse_pci` makes that order
        the reverse of the device files', as it is on some machines.
        """
        sheet = _model(model)
        for node in nodes:
            for gone in self.nodes().get(node, ()):
                if gone >= gpus:
                    shutil.rmtree(self._gpu(node, gone))
            for number in range(gpus):
                place = gpus - 1 - number if reverse_pci else number
                directory = self._gpu(node, number)
                load = directory / "load"
                load.mkdir(parents=True, exist_ok=True)
                # Whatever the umask: every user's job reads its GPU, and drives it, as on a device without cgroups.
                for path, mode in ((directory.parent, 0o755), (directory, 0o755), (load, 0o1777)):
                    path.chmod(mode)
                write(directory / "state", _default_state(sheet, cluster, node, number, place))
                (directory / "xid").touch(mode=0o644)
            write(self.root / node / "state", DRIVER)

    def nodes(self) -> dict[str, tuple[int, ...]]:
        """The nodes there are, each with the numbers of its GPUs."""
        return {
            node.name: tuple(sorted(int(gpu.name) for gpu in node.iterdir() if gpu.name.isdecimal()))
            for node in sorted(self.root.glob("*"))
            if node.is_dir()
        }

    def state(self, node: str, gpu: int) -> Mapping[str, Value]:
        """The lines of a GPU's state file as they are; numbers as int."""
        return parse((self._gpu(node, gpu) / "state").read_text())

    def set(self, node: str, gpu: int, **values: Value | None) -> None:
        """Set values of one GPU, by the keys of the state file; None goes back to the derived or absent value.

        The name of an NVML error ("NOT_SUPPORTED", "GPU_IS_LOST"...) as value makes NVML answer with that error;
        ``status="GPU_IS_LOST"`` makes every call on this GPU do so. Raises ValueError for an unknown key or value.
        """
        for key, value in values.items():
            check(key, value)
        self._edit(self._gpu(node, gpu), lambda state: merged(state, values))

    def set_node(self, node: str, **values: Value | None) -> None:
        """As `set`, for what belongs to a node's driver: versions, and `status` for every call without a GPU."""
        unknown = values.keys() - NODE_KEYS
        if unknown:
            there_are = ", ".join(sorted(NODE_KEYS))
            raise ValueError(f"no such key of a node: {', '.join(sorted(unknown))}; there are {there_are}")
        self._edit(self.root / node, lambda state: merged(state, values))

    def not_supported(self, node: str, gpu: int, *keys: str) -> None:
        """Make NVML answer NOT_SUPPORTED for these keys."""
        self.set(node, gpu, **dict.fromkeys(keys, "NOT_SUPPORTED"))

    def fail(self, node: str, gpu: int | None, function: str, error: str = "NOT_SUPPORTED") -> None:
        """Make one NVML function answer with `error`; `gpu` is None for one that belongs to no GPU (nvmlInit...)."""
        if error not in ERRORS:
            raise ValueError(f"no such NVML error: {error}; there are {', '.join(sorted(ERRORS))}")
        self._edit(
            self._place(node, gpu), lambda state: merged(state, {f"fail {function_name(function)}": error})
        )

    @contextmanager
    def hang(self, node: str, gpu: int | None, function: str) -> Iterator[None]:
        """While the block runs, calls of `function` do not return; `gpu` as for `fail`."""
        key = f"hang {function_name(function)}"
        self._edit(self._place(node, gpu), lambda state: merged(state, {key: ""}))
        try:
            yield
        finally:
            self._edit(self._place(node, gpu), lambda state: merged(state, {key: None}))

    def xid(self, node: str, gpu: int, code: int) -> None:
        """Raise an Xid event on a GPU."""
        with (self._gpu(node, gpu) / "xid").open("a") as file:
            file.write(f"{int(code)}\n")

    def mig(self, node: str, gpu: int, *profiles: str) -> tuple[str, ...]:
        """Cut a GPU into MIG instances ("1g.10gb", "3g.40gb"...); without profiles, switch MIG off.

        Returns the instances' UUIDs. Raises ValueError for a profile that the model has not, or if they don't fit.
        """
        directory = self._gpu(node, gpu)
        state = self.state(node, gpu)
        sheet = next(sheet for sheet in MODELS.values() if sheet.name == state["name"])
        unknown = [profile for profile in profiles if profile not in sheet.mig]
        if unknown:
            raise ValueError(
                f"{sheet.name} has no MIG profile {unknown[0]}; it has {', '.join(sheet.mig) or 'none'}"
            )
        if sum(sheet.mig[profile].slices for profile in profiles) > 7:
            raise ValueError(f"{'+'.join(profiles)} are more than the 7 slices of a GPU")
        uuids = tuple(f"MIG-{_uuid(str(state['uuid']), str(slot))}" for slot in range(len(profiles)))
        edit: dict[str, Value | None] = {key: None for key in state if key.startswith("mig ")}
        for slot, (profile, identity) in enumerate(zip(profiles, uuids, strict=True)):
            # GPU instance ids start at 7 for the smallest profile on real GPUs: never equal to the slot.
            size = sheet.mig[profile]
            edit[f"mig {slot}"] = f"{slot + 7} 0 {size.slices} {size.memory_mib} {identity} {profile}"
        if sheet.mig:
            edit["mig_mode"] = int(bool(profiles))
        self._edit(directory, lambda state: merged(state, edit))
        return uuids

    def clear(self, node: str, gpu: int) -> None:
        """Take back what `set`, `fail`, `hang` and `mig` did to a GPU, and forget its Xids and loads."""
        directory = self._gpu(node, gpu)
        state = self.state(node, gpu)
        place = int(str(state["pci"]).split(":")[1], 16) - 1
        sheet = next(
            (sheet for sheet in MODELS.values() if sheet.name == state["name"]), MODELS["A100-SXM4-80GB"]
        )
        fresh = _default_state(sheet, "", node, gpu, place) | {"uuid": state["uuid"]}
        self._edit(directory, lambda _: fresh)
        (directory / "xid").write_text("")
        for load in (directory / "load").iterdir():
            load.unlink(missing_ok=True)

    def _gpu(self, node: str, gpu: int) -> Path:
        return self.root / node / str(gpu)

    def _place(self, node: str, gpu: int | None) -> Path:
        return self.root / node if gpu is None else self._gpu(node, gpu)

    def _edit(self, directory: Path, change: Callable[[State], State]) -> None:
        """Read, change, replace; one writer at a time."""
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = directory / "state"
            write(path, change(parse(path.read_text())))
        finally:
            os.close(lock)


def _model(name: str) -> GpuModel:
    if name not in MODELS:
        raise ValueError(f"no such GPU model: {name}; there are {', '.join(MODELS)}")
    return MODELS[name]


def _uuid(*parts: str) -> uuid.UUID:
    """A UUID that depends on the parts alone, so that a cluster made again has the same GPUs."""
    return uuid.uuid5(uuid.NAMESPACE_URL, "gsub:emulated-gpu:" + "/".join(parts))


def _default_state(sheet: GpuModel, cluster: str, node: str, number: int, place: int) -> State:
    identity = _uuid(cluster, node, str(number))
    state: State = {
        "name": sheet.name,
        "uuid": f"GPU-{identity}",
        "serial": str(identity.int % 10**13),
        "minor": number,
        "pci": f"00000000:{place + 1:02X}:00.0",
        "pci_device_id": sheet.pci_device_id,
        "memory_total_mib": sheet.memory_total_mib,
        "memory_reserved_mib": sheet.memory_reserved_mib,
        "memory_base_mib": 0,
        "power_idle_mw": sheet.power_idle_mw,
        "power_limit_mw": sheet.power_limit_mw,
        "clock_idle_mhz": sheet.clock_idle_mhz,
        "max_clock_graphics_mhz": sheet.max_clock_sm_mhz,
        "max_clock_sm_mhz": sheet.max_clock_sm_mhz,
        "max_clock_mem_mhz": sheet.max_clock_mem_mhz,
        "max_clock_video_mhz": sheet.max_clock_video_mhz,
        "persistence_mode": 1,
        "performance_state": 0,
        "nvlinks": sheet.nvlinks or "NOT_SUPPORTED",
    }
    if sheet.ecc:
        state |= dict.fromkeys(("ecc_corrected_volatile", "ecc_corrected_aggregate"), 0)
        state |= dict.fromkeys(("ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"), 0)
        state |= dict.fromkeys(
            ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"), 0
        )
        # rows are remapped from Ampere on; before, pages were retired
        state["retirement_pending"] = 0 if not sheet.mig else "NOT_SUPPORTED"
        state["ecc_mode"] = 1
    if sheet.mig:
        state["mig_mode"] = 0
    return state
