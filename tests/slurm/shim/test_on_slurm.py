"""What the shim relies on, asked of a real slurmctld of each release."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.decide.conftest import write_job_submit
from tests.unit.slurm_plugins.lua.lua import KINDS, MEMORY, SHIM

pytestmark = pytest.mark.all_releases

# Tells of each field what it reads as, then of each edit what it reads as before and after it is written, and refuses
# the job: nothing is left to clean up.
SCRIPT = """\
local tables = dofile("{libexec}/tables.lua")
local texts = {{ gres = "gpu:4", cpus_per_tres = "gres:gpu:4", mem_per_tres = "gres:gpu:4000" }}
local function say(...)
  local parts = {{}}
  for index = 1, select("#", ...) do
    parts[index] = string.format("%s", tostring((select(index, ...))))
  end
  slurm.log_user("%s", "@" .. table.concat(parts, "@"))
end
function slurm_job_submit(job)
  for name in pairs(tables.FIELDS) do
    local fine, value = pcall(function() return job[name] end)
    say("field", name, fine, value)
  end
  for name, rule in pairs(tables.EDITS) do
    local value = rule[1] == "int" and math.min(3, rule[3]) or texts[name] or "gsub"
    local before = job[name]
    local fine = pcall(function() job[name] = value end)
    say("edit", name, fine, before, value, job[name])
  end
  say("variable", pcall(function()
    job.environment["GSUB_DECISION"] = "d-1"
    return job.environment["GSUB_DECISION"], job.environment["GSUB_NOT_SET"]
  end))
  say("type", (pcall(function() job.features = {{}} end)), (pcall(function() job.min_nodes = "many" end)))
  return slurm.ERROR
end
function slurm_job_modify()
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


def release(cluster: Cluster) -> tuple[int, ...]:
    return tuple(int(part) for part in cluster.version.split(".")[:2])


@pytest.fixture(scope="module")
def told(cluster: Cluster) -> list[list[str]]:
    """The rows that the script tells about a GPU job."""
    before = (cluster.paths.etc / "job_submit.lua").read_text()
    write_job_submit(cluster, SCRIPT.format(libexec=cluster.paths.libexec))
    try:
        done = cluster.run(["sbatch", "--gpus-per-node=2", "--wrap=true"])
    finally:
        write_job_submit(cluster, before)
    return [line.split("@")[1:] for line in done.stderr.splitlines() if "@" in line]


def test_fields_read_as_the_tables_say(cluster: Cluster, told: list[list[str]]) -> None:
    fields = {row[1]: row[3] for row in told if row[0] == "field" and row[2] == "true"}
    assert fields["tres_per_node"] in ("gres:gpu:2", "gres/gpu:2")
    stated = {"tres_per_node", "name", "work_dir", "bitflags", "min_cpus", "default_account", "user_name"}
    for name, kind in {**KINDS, **MEMORY}.items():
        if name not in stated and name != "gres":
            unset = ("nil",) if kind in ("text", "memory") else (str(kind), "nil")
            assert fields[name] in unset, name
    lacking = {name for name, value in fields.items() if value == "nil" and isinstance(KINDS.get(name), int)}
    assert lacking == ({"segment_size"} if release(cluster) < (25, 11) else set())


def test_every_edit_is_one_that_slurm_makes(cluster: Cluster, told: list[list[str]]) -> None:
    rows = [row for row in told if row[0] == "edit"]
    assert len(rows) >= 20
    for _, name, fine, _, value, after in rows:
        assert fine == "true", name
        if name == "segment_size" and release(cluster) < (25, 11):
            assert after == "nil"  # written without an error, and without an effect: the shim looks first
        elif name == "gres":
            assert after in ("gres:gpu:4", "gres/gpu:4")
        else:
            assert after == value, name


def test_variables_are_added_and_a_wrong_type_raises(told: list[list[str]]) -> None:
    assert ["variable", "true", "d-1", "nil"] in told
    assert ["type", "false", "false"] in told


def test_a_closed_connection_cannot_kill_slurmctld(cluster: Cluster) -> None:
    status = Path(f"/proc/{cluster.daemons()['slurmctld']}/status").read_text()
    sets = dict(
        line.split(":\t") for line in status.splitlines() if line.startswith("Sig") and "Q" not in line
    )
    blocked, ignored, caught = (int(sets[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt"))
    assert (blocked | ignored | caught) & (1 << (signal.SIGPIPE - 1))


@pytest.fixture(scope="module")
def advised(cluster: Cluster) -> Path:
    """A slurm.conf with the client's filter."""
    folder = cluster.paths.etc / "advised"
    folder.mkdir(exist_ok=True)
    text = (cluster.paths.etc / "slurm.conf").read_text()
    (folder / "slurm.conf").write_text(text + "CliFilterPlugins=cli_filter/lua\n")
    (folder / "cli_filter.lua").write_text((SHIM / "cli_filter.lua").read_text())
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder / "slurm.conf"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sbatch", "-H", "-G1", "--wrap=true"], None),
        (["sbatch", "-H", "--deadline=now+1hour", "--requeue", "--wrap=true"], None),
        (["sbatch", "-H", "-G1", "--export=NONE", "--wrap=true"], "--export leaves it out"),
        (["sbatch", "-Q", "-H", "-G1", "--export=NONE", "--wrap=true"], None),
        (["sbatch", "-H", "--tres-per-task=gres/gpu:1", "-n1", "--export=NONE", "--wrap=true"], "--export"),
        (
            ["sbatch", "-H", "-n1", "--ntasks-per-gpu=1", "--export=NONE", "--wrap=true"],
            "--export leaves it out",
        ),
        (["salloc", "--gres=gpu:1", "true"], "salloc does not send its environment"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_advice_at_the_client(
    clean: Cluster, user: str | None, advised: Path, command: list[str], said: str | None
) -> None:
    if "--tres-per-task=gres/gpu:1" in command and release(clean) < (23, 11):
        pytest.skip("this sbatch has no --tres-per-task")
    done = clean.run(["env", f"SLURM_CONF={advised}", "GSUB=off", *command], user=user)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "lua: gsub: " in line]
    assert len(lines) == (said is not None)
    assert all(said in line for line in lines if said)
