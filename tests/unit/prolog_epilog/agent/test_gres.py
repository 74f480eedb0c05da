"""Which GPUs are a job's: Slurm's numbers count slurmd's list, whose output is as the three releases printed it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from profiler.gpu import GpuIdentity, GpuReading, GpuSample, MigInstance
from profiler.records import GpuRef
from prolog_epilog.agent import gres
from prolog_epilog.agent.gres import NodeGpus, ask_slurmd, capabilities, parse

_OLD = "slurmd: Gres Name=gpu Type={type} Count=1 Index={index} ID=7696487 File={file} (null)"
_NEW = (
    "[2026-11-22T11:27:32.995] Gres Name=gpu Type={type} Count=1 Index={index} ID=7696487 File={file} Links=(null) "
    "Flags=HAS_FILE,HAS_TYPE,ENV_NVML,ENV_RSMI,ENV_ONEAPI,ENV_OPENCL,ENV_DEFAULT"
)
_HARDWARE = (
    "slurmd: Node configuration differs from hardware: CPUs=64:2(hw) Boards=1:1(hw) SocketsPerBoard=2:1(hw)"
)
_SHARD = "slurmd: Gres Name=shard Type=(null) Count=2 Index=0 ID=1918986455 File=/dev/nvidia0 (null)"
_NO_MPS = "slurmd: Gres Name=mps Type=(null) Count=0 Index=0 ID=7565421 File=/dev/nvidia0 (null)"


def whole(template: str, *numbers: int) -> list[str]:
    return [template.format(type="(null)", index=number, file=f"/dev/nvidia{number}") for number in numbers]


def mig(template: str, *, a_line_each: bool) -> list[str]:
    lines = [template.format(type="a100", index=n, file=f"/dev/nvidia{n}") for n in (1, 2)]
    for kind, caps in (("3g.40gb", (66, 67)), ("1g.10gb", (75, 76))):
        files = ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
        for file in files if a_line_each else [",".join(files)]:
            lines.append(template.format(type=kind, index=caps[1], file=file))
    return lines


MIG = {"22.05": mig(_OLD, a_line_each=True), "24.11": mig(_NEW, a_line_each=False)}
INSTANCES = (
    GpuIdentity("MIG-3g", 0, "A100 MIG 3g.40gb", mig=MigInstance("GPU-0", 7, 0)),
    GpuIdentity("MIG-1g", 0, "A100 MIG 1g.10gb", mig=MigInstance("GPU-0", 8, 0)),
)
REF_3G = GpuRef(0, "MIG-3g", "A100 MIG 3g.40gb", "GPU-0")
REF_1G = GpuRef(0, "MIG-1g", "A100 MIG 1g.10gb", "GPU-0")


def node(*gpus: GpuIdentity) -> GpuSample:
    """A look at a node; NVML's order is the reverse of the device files'."""
    return GpuSample(0.0, tuple(GpuReading(gpu) for gpu in gpus[::-1]))


def gpu(minor: int) -> GpuIdentity:
    return GpuIdentity(f"GPU-{minor}", minor, "A100")


def ref(minor: int) -> GpuRef:
    return GpuRef(minor, f"GPU-{minor}", "A100")


def asked(lines: list[str], mig_minors: Path = Path("/nonexistent")) -> NodeGpus:
    return NodeGpus(lambda: "\n".join(lines), mig_minors=mig_minors)


@pytest.mark.parametrize("template", [_OLD, _NEW])
@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        ((0, 1, 2, 3), "0,2", (0, 2)),
        ((1, 3, 4, 5), "0", (1,)),
        ((1, 3, 4, 5), "1,3", (3, 5)),
        ((2, 3, 0, 1), "0,3", (2, 1)),  # the order of gres.conf counts
        ((0, 1, 2, 3), "1-3", (1, 2, 3)),
        ((2, 3), "0,0", (2,)),
    ],
)
def test_slurms_number_counts_slurmds_list(
    template: str, files: tuple[int, ...], given: str, expected: tuple[int, ...]
) -> None:
    sample = node(*(gpu(minor) for minor in range(6)))
    found = asked([_HARDWARE, *whole(template, *files)]).of({"SLURM_JOB_GPUS": given}, sample)
    assert found == tuple(ref(minor) for minor in expected)


@pytest.mark.parametrize("release", MIG)
def test_mig_instances_by_their_capability_files(release: str, tmp_path: Path) -> None:
    parsed = parse("\n".join(MIG[release]))
    assert [len(one.files) for one in parsed.gpus] == [1, 1, 3, 3]
    sample = node(gpu(0), *INSTANCES, gpu(1), gpu(2))
    by_number = asked(MIG[release])
    assert by_number.of({"SLURM_JOB_GPUS": "0,2"}, sample) == (ref(1), REF_3G)
    assert by_number.of({"SLURM_JOB_GPUS": "3"}, sample) == (REF_1G,)
    # as the driver lists them, which need not be as they are usually numbered
    listing = tmp_path / "mig-minors"
    listing.write_text("config 1\nmonitor 2\ngpu0/gi8/access 66\ngpu0/gi8/ci0/access 67\n")
    assert asked(MIG[release], listing).of({"SLURM_JOB_GPUS": "2"}, sample) == (REF_1G,)
    # never the whole GPU in place of an instance that nobody has seen
    for blind in (None, node(gpu(0))):
        assert by_number.of({"SLURM_JOB_GPUS": "2"}, blind) is None


def test_mig_instances_by_uuid_where_slurmd_found_them_itself() -> None:
    env = {"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "MIG-1g,MIG-3g"}
    assert asked([]).of(env, node(gpu(0), *INSTANCES)) == (REF_1G, REF_3G)
    assert asked([]).of({**env, "SLURM_JOB_GPUS": "0"}, node(gpu(0), *INSTANCES)) is None


def test_a_job_without_gpus_and_jobs_whose_gpus_are_not_known() -> None:
    plain = asked(whole(_OLD, 0, 1))
    assert plain.of({}, None) == () and plain.of({"SLURM_JOB_GPUS": ""}, None) == ()
    for given in ("2", "x", "0,,1", "-1", "0-9999"):
        assert plain.of({"SLURM_JOB_GPUS": given}, None) is None
    assert plain.of({"SLURM_JOB_GPUS": "1"}, None) == (GpuRef(minor=1),)
    no_files = ["slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=(null) (null)"]
    assert asked(no_files).of({"SLURM_JOB_GPUS": "1"}, None) is None


def test_amd_gpus_by_their_render_nodes() -> None:
    lines = [_NEW.format(type="mi300", index=n, file=f"/dev/dri/renderD{n}") for n in (128, 136)]
    assert asked(lines).of({"SLURM_JOB_GPUS": "1"}, None) == (GpuRef(minor=136),)


def test_shared_gpus() -> None:
    plain, sharing = asked([*whole(_OLD, 0), _NO_MPS]), asked([*whole(_OLD, 0), _SHARD])
    assert plain.load() and sharing.load()
    assert (plain.shared, sharing.shared) == (False, True)
    assert sharing.of({"SLURM_JOB_GPUS": "0"}, None) == (GpuRef(minor=0),)


def test_a_node_with_gpus_of_several_types_is_known_as_one() -> None:
    one, two = (
        asked(whole(_OLD, 0)),
        asked([*whole(_OLD, 0), _NEW.format(type="h100", index=1, file="/dev/nvidia1")]),
    )
    assert not two.several_types, "nobody knows yet"
    assert one.load() and two.load()
    assert (one.several_types, two.several_types) == (False, True)


def test_a_slurmd_that_does_not_answer_is_asked_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    answers = ["", "", "\n".join(whole(_OLD, 7))]

    def ask() -> str:
        answer = answers.pop(0)
        if not answer:
            raise OSError("no")
        return answer

    gpus = NodeGpus(ask, clock=lambda: now)
    env = {"SLURM_JOB_GPUS": "0"}
    assert gpus.of(env, None) is None and gpus.of(env, None) is None and len(answers) == 2
    now = gres._RETRY
    assert gpus.of(env, None) is None and len(caplog.records) == 1, "told once"
    now = 2 * gres._RETRY
    assert gpus.of(env, None) == (GpuRef(minor=7),) and not answers


def test_what_the_driver_lists() -> None:
    text = "config 1\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu15/gi14/ci7/access 2162\nrubbish\n"
    assert capabilities(text) == {12: (0, 1, None), 13: (0, 1, 0), 2162: (15, 14, 7)}
    assert [gres._computed(number) for number in (12, 13, 2162)] == [(0, 1, None), (0, 1, 0), (15, 14, 7)]


def fake_slurmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path = tmp_path / "slurmd"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_slurmd_is_asked_for_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurmd(tmp_path, monkeypatch, "import sys; print(sys.argv[1:])")
    assert ask_slurmd("n3", deadline=60) == "['-N', 'n3', '-G']\n"


def test_a_slurmd_that_hangs_or_fails_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurmd(tmp_path, monkeypatch, "import time; time.sleep(600)")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ask_slurmd("n3", deadline=0.2)
    assert time.monotonic() - started < 60
    fake_slurmd(tmp_path, monkeypatch, "import sys; sys.exit('fatal: no such node')")
    with pytest.raises(OSError, match="no such node"):
        ask_slurmd("n3", deadline=60)


@pytest.mark.parametrize(
    ("count", "files", "minors"),
    [
        (8, "/x/dev/nvidia[0-7]", tuple(range(8))),  # 22.05 without types: one line for a whole range
        (4, "/dev/nvidia[1,3-5]", (1, 3, 4, 5)),
        (2, "/dev/nvidia2,/dev/nvidia0", (2, 0)),
        (1, "/dev/nvidia6", (6,)),
    ],
)
def test_a_line_may_stand_for_a_range_of_gpus(count: int, files: str, minors: tuple[int, ...]) -> None:
    line = f"slurmd: Gres Name=gpu Type=(null) Count={count} Index=0 ID=7696487 File={files} (null)"
    numbers = ",".join(map(str, range(count)))
    found = NodeGpus(lambda: line).of({"SLURM_JOB_GPUS": numbers}, None)
    assert found is not None and tuple(gpu.minor for gpu in found) == minors
