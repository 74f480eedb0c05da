"""One GPU's share of what a job asks for; dependencies; arrays; how long and at what price."""

from __future__ import annotations

import pytest

from gsub.argv import split
from gsub.sbatch_options import Table
from gsub.smoke.dependency import for_smoke
from gsub.smoke.price import history_of, price_line, seconds_of
from gsub.smoke.request import NoSmokeError, environment, first_task, real_job, words
from profiler.early import History
from site_configs.site import parse_site

SITE = parse_site(
    'cluster = "c"\n[partitions.gpu]\ncpus_per_node = 64\ngpus_per_node = 8\nmemory_per_node = "512G"\n'
    "[partitions.plain]\n"
)


def asked(options: str, release: tuple[int, int] = (24, 11)) -> dict[str, str]:
    line = split([*options.split(), "t.sh"], Table.of_all())
    real = real_job(line, b"#!/bin/sh\n", {}, release)
    found, _ = words(real, SITE, seconds=210.0, nodes=1, waits="", drop_after=None, output="x")
    return dict(word.removeprefix("--").partition("=")[::2] for word in found)


@pytest.mark.parametrize("release", [(22, 5), (24, 11), (26, 5)])
@pytest.mark.parametrize(
    ("options", "cpus", "memory"),
    [
        ("-N2 --gpus-per-node=8 --ntasks-per-node=8 -c6 --mem=480G", "6", "61440M"),
        ("-N2 --gpus-per-node=8 --ntasks-per-node=1 -c64 --mem=0 -pgpu", "8", "65536M"),
        ("-G16 --cpus-per-gpu=5 --mem-per-gpu=20G", "5", "20480M"),
        ("-G16 -n16 -c4 --mem-per-cpu=2G", "4", None),
        ("-n8 --gpus-per-task=1 -c7", "7", None),
        ("-n8 --gpus-per-task=2 -c8", "4", None),
        ("-G1 -c12 --mem=32G", "12", "32768M"),
        ("-N1 --gres=gpu:4 -n32", "8", None),
        ("-N1 --gres=gpu:4", None, None),
        ("-N4 --gres=gpu:8 --exclusive -pgpu", "8", "65536M"),
        ("-N4 --gres=gpu:8 -pgpu", None, "65536M"),
        ("-G16 --mem=400G -pgpu", None, "51200M"),
        ("-G16 -n16 --ntasks-per-gpu=1", "1", None),
    ],
)
def test_the_share_of_one_gpu(
    options: str, cpus: str | None, memory: str | None, release: tuple[int, int]
) -> None:
    if release == (22, 5) and "ntasks-per-gpu" in options:
        options = options.replace("-n16 ", "")
    found = asked(options, release)
    assert (found.get("cpus-per-task"), found.get("mem")) == (cpus, memory)
    assert found.get("mem-per-cpu") == ("2048M" if "mem-per-cpu" in options else None)


def test_where_it_may_run_goes_over_and_nothing_else() -> None:
    found = asked(
        "-N2 --gres=gpu:a100:4,ssd:1 -A a -p gpu -q high --reservation=r -C x&y -x n3 -w n[5-6] --wckey=w -L lic:1"
        " --export=ALL,X=1 --begin=now+1hour --tmp=10G -o o -e e --array=1-9 --mail-type=END --signal=TERM@9 --nice=5"
        " --requeue --exclusive --switches=1 -k --open-mode=append --comment=c -D /x --parsable -W -J name --priority=9"
    )
    for one in (
        "nodes",
        "ntasks-per-node",
        "time",
        "no-requeue",
        "kill-on-invalid-dep",
        "cpus-per-task",
        "mem",
    ):
        found.pop(one, None)
    assert found == {
        "job-name": "smoke-name", "output": "x", "gres": "gpu:a100:1,ssd:1", "account": "a", "partition": "gpu",
        "qos": "high", "reservation": "r", "constraint": "x&y", "exclude": "n3", "nodelist": "n5", "wckey": "w",
        "licenses": "lic:1", "export": "ALL,X=1", "begin": "now+1hour", "tmp": "10G",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    ["-N1", "-G0", "-G1 -H", "-G1 --container=x", "-G1 -Mx", "-G1 : -G1", "-G1 --bb=x", "-G3 -N2 --gpus-per-node=2",
     "-G1 -D /x/%j", "-G1 --export-file=f", "-G1 -w ./nodes", "-G1 --uid=x"],
)  # fmt: skip
def test_jobs_without_a_run(options: str) -> None:
    with pytest.raises(NoSmokeError):
        asked(options)


def test_the_size_of_the_real_job() -> None:
    def size(options: str) -> tuple[int, int]:
        real = real_job(split([*options.split(), "t.sh"], Table.of_all()), b"", {}, (24, 11))
        return real.gpus, real.nodes

    assert size("-N2 --gpus-per-node=8") == (16, 2)
    assert size("-N2-4 --gpus-per-node=8") == (16, 2)
    assert size("-G16") == (16, 0)
    assert size("--gres=gpu:3") == (3, 1)


@pytest.mark.parametrize(
    ("own", "task", "namesakes", "expected"),
    [
        ("", "", [], ""),
        ("afterok:1:2,afterany:3", "", [], "afterok:1:2,afterany:3"),
        ("afterok:1?afterok:2", "", [], "afterok:1?afterok:2"),
        ("singleton", "", [7], "afterany:7"),
        ("afterok:1,singleton", "", [], "afterok:1"),
        ("afterok:1?singleton", "", [], ""),
        ("aftercorr:5:6_2", "3", [], "afterok:5_3:6_2"),
        ("aftercorr:5", "", [], "aftercorr:5"),
        ("after:5+10", "", [], "after:5+10"),
        ("expand:5", "", [], None),
        ("afterok:1,nonsense", "", [], None),
    ],
)
def test_a_smoke_job_waits_for_what_the_real_one_waits_for(
    own: str, task: str, namesakes: list[int], expected: str | None
) -> None:
    assert for_smoke(own, task, namesakes) == expected


@pytest.mark.parametrize(
    ("array", "expected"),
    [("0-15", "0 16 0 15 1"), ("3,1,7%2", "1 3 1 7 1"), ("4-10:3", "4 3 4 10 3"), ("5", "5 1 5 5 1")],
)
def test_the_first_task_of_an_array(array: str, expected: str) -> None:
    assert " ".join(first_task(array).values()) == expected


@pytest.mark.parametrize("array", ["", "x", "1-", "1-9999999", "-3", "1:2"])
def test_an_array_that_cannot_be_read(array: str) -> None:
    assert first_task(array) == {}


def test_no_variable_is_read_as_an_option() -> None:
    around = {
        "SBATCH_OUTPUT": "x",
        "SBATCH_WAIT4SWITCH": "9",
        "SLURM_HINT": "h",
        "SLURM_CONF": "c",
        "WANDB_MODE": "x",
    }
    assert environment(around) == {"SLURM_CONF": "c", "WANDB_MODE": "x"}


def test_how_long_and_the_price() -> None:
    quick = History.of(200, [5.0] * 150)
    assert seconds_of(SITE, None, several=True, learn=False, limit=None) == 210
    assert seconds_of(SITE, quick, several=True, learn=False, limit=None) == 60
    assert seconds_of(SITE, quick, several=True, learn=True, limit=None) == 240
    assert seconds_of(SITE, None, several=True, learn=False, limit=120) == 120
    short = parse_site('cluster = "c"\n[smoke]\nlongest = "15 s"')
    for learn, limit in ((True, None), (False, None), (True, 60), (False, 60)):
        assert seconds_of(short, None, several=True, learn=learn, limit=limit) == 15
    told = price_line(60.0, quick, nodes=2, several=True, learn=False)
    assert told == "smoke: 2 GPUs x 1 min; 75 % of 200 jobs like this failed in their first 1 min"
    assert "Philly" in price_line(60.0, History.of(3, [5.0]), nodes=1, several=True, learn=False)


def test_a_service_that_does_not_answer_is_not_waited_for() -> None:
    gone = parse_site(
        'cluster = "c"\n[service]\nurl = "http://127.0.0.1:9"\n[slurm]\nmunge_socket = "/nothing"'
    )
    assert history_of(gone, 8, budget=0.3) is None
    assert history_of(SITE, 8) is None


@pytest.mark.parametrize("release", [(22, 5), (24, 11), (26, 5)])
def test_options_of_site_plugins_in_the_script_are_not_left_out(release: tuple[int, int]) -> None:
    line = split(["t.sh"], Table.of_all())
    script = "#!/bin/sh\n#SBATCH -N2 --gres=gpu:8 --mem=0 -t 1:00 --output=%x.log{}\n"
    assert real_job(line, script.format("").encode(), {}, release).gpus == 16
    for more in (" --container-image=nvcr.io/pytorch", "\n#SBATCH --container-mounts a:b", " --nv"):
        with pytest.raises(NoSmokeError, match="does not know"):
            real_job(line, script.format(more).encode(), {}, release)
