"""How the GPUs of a node are laid out: the device files that gres.conf names, and what NVML shows of them.

Sites differ here, and what takes a GPU by a number instead of asking whose number it is goes wrong at some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from site_configs.devcluster.nvml import EmulatedGpus

Layout = Literal["plain", "reversed", "gaps", "mig"]
"""`plain`: nvidia0, nvidia1..., and NVML lists them so. `reversed`: NVML lists them the other way round. `gaps`: Slurm
has nvidia1, nvidia3, nvidia4..., while NVML shows nvidia0 and nvidia2 too. `mig`: GPU 0 is cut into two instances."""

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
MIG_PROFILES: Final = ("3g.40gb", "1g.10gb")
"""The instances of GPU 0 in the layout `mig`. The node's other GPUs are whole."""
_FIRST_INSTANCE: Final = 7  # the emulator's, as on a real GPU: an instance's id is not its place


def numbers(layout: Layout, gpus: int) -> tuple[int, ...]:
    """The device files `nvidia<number>` of the whole GPUs that Slurm has on a node of `gpus` GPUs.

    >>> numbers("gaps", 4)
    (1, 3, 4, 5)
    """
    if layout == "gaps":
        return (1, *range(3, gpus + 2))
    if layout == "mig":
        return tuple(range(1, gpus - len(MIG_PROFILES) + 1))
    return tuple(range(gpus))


def capability(gpu: int, instance: int, compute: int | None = None) -> int:
    """The number of a MIG instance's file `nvidia-caps/nvidia-cap<number>`.

    As /proc/driver/nvidia-caps/mig-minors has it. `compute` None: the GPU instance's own; else its compute
    instance's.
    """
    return 3 + gpu * 135 + instance * 9 + (0 if compute is None else 1 + compute)


def gres(layout: Layout, gpus: int, model: str) -> str:
    """`Gres=` of a node in slurm.conf."""
    if layout == "mig":
        instances = [f"gpu:{profile}:1" for profile in MIG_PROFILES]
        return ",".join([f"gpu:{model}:{gpus - len(MIG_PROFILES)}", *instances])
    return f"gpu:{gpus}"


def gres_conf(nodes: str, layout: Layout, gpus: int, model: str, dev: Path) -> list[str]:
    """The lines of `nodes` in gres.conf; `dev` has the device files."""
    there = numbers(layout, gpus)
    first = next(i for i, number in enumerate(there) if number == there[-1] - (len(there) - 1 - i))
    parts = [*map(str, there[:first]), _range(there[first], there[-1])]
    files = parts[0] if len(there) == 1 else f"[{','.join(parts)}]"
    line = f"NodeName={nodes} Name=gpu"
    if layout != "mig":
        return [f"{line} File={dev}/nvidia{files}"]
    lines = [f"{line} Type={model} File={dev}/nvidia{files}"]
    for slot, profile in enumerate(MIG_PROFILES):
        caps = (capability(0, _FIRST_INSTANCE + slot), capability(0, _FIRST_INSTANCE + slot, 0))
        device = ",".join([f"{dev}/nvidia0", *(f"{dev}/nvidia-caps/nvidia-cap{cap}" for cap in caps)])
        lines.append(f"{line} Type={profile} MultipleFiles={device}")
    return lines


def device_files(layouts: Sequence[Layout], gpus: int) -> tuple[str, ...]:
    """The names of all the device files that `gres_conf` may name."""
    names = {f"nvidia{number}" for layout in layouts for number in (0, *numbers(layout, gpus))}
    if "mig" in layouts:
        for slot in range(len(MIG_PROFILES)):
            instance = _FIRST_INSTANCE + slot
            names |= {f"nvidia-caps/nvidia-cap{capability(0, instance, compute)}" for compute in (None, 0)}
    return tuple(sorted(names))


def emulate(gpus: EmulatedGpus, node: str, layout: Layout, count: int, cluster: str) -> None:
    """Make the GPUs of `node` as NVML shows them."""
    shown = max(numbers(layout, count)) + 1
    gpus.create([node], shown, cluster=cluster, reverse_pci=layout == "reversed")
    if layout == "mig":
        gpus.mig(node, 0, *MIG_PROFILES)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
