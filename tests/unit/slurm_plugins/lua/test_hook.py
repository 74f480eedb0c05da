"""The job_submit.lua that is shipped: what slurmctld loads, and what a site's own script is to hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.unit.slurm_plugins.lua.lua import SHIM, SOURCE, Shim, environment
from tests.unit.slurm_plugins.lua.servers import Service, says

SCRIPT = (SHIM / "job_submit.lua").read_text()
DOCUMENT = (SOURCE.parents[1] / "docs/shim.md").read_text()
HOME = "/usr/libexec/gsub/gsub.lua"
JOB = {"tres_per_node": "gres:gpu:2"}


def script_for(folder: Path) -> str:
    assert HOME in SCRIPT
    return SCRIPT.replace(HOME, str(folder / "gsub.lua"))


def test_slurmctld_can_load_it(shim: Shim) -> None:
    loaded = shim.order("script", text=script_for(SHIM))
    assert loaded == {"rc": 0, "modify": True, "log": []}


def blocks(language: str = "lua") -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def test_the_document_shows_the_same_four_lines() -> None:
    hook = [
        line for line in (SOURCE / "job_submit.lua").read_text().splitlines() if re.search(r"-- [1-4]$", line)
    ]
    assert len(hook) == 4
    assert [line for line in blocks()[0].splitlines() if re.search(r"-- [1-4]$", line)] == hook


def test_the_documents_settings_are_settings(shim: Shim) -> None:
    before, function, after = script_for(SHIM).partition("function slurm_job_submit")
    loaded = shim.order("script", text=before + blocks()[1] + function + after)
    assert (loaded["rc"], loaded["log"]) == (0, [])
    names = set(re.findall(r"^ +(\w+) = ", blocks()[1], re.MULTILINE))
    assert names == {"socket", "owner", "deadline", "failures", "pause"}


def test_a_filter_of_the_sites_own_calls_ours(shim: Shim) -> None:
    copy = '"/etc/slurm/gsub_cli_filter.lua"'
    assert copy in blocks()[2]
    text = blocks()[2].replace(copy, f'"{SHIM / "cli_filter.lua"}"')
    text += "return slurm.SUCCESS\n"
    options = {"type": "sbatch", "gpus": "2", "requeue": "requeue"}
    reply = shim.order("filter", text=text, components=[options], env={})
    assert "--open-mode=append" in reply["log"][0]


def test_the_document_copies_every_file_of_the_shim() -> None:
    [install] = [block for block in blocks("sh") if "install -m" in block]
    copied = set(re.findall(r"\w+\.lua", install))
    assert copied == {path.name for path in SHIM.glob("*.lua")} - {"job_submit.lua", "cli_filter.lua"}


def test_it_asks_the_service(shim: Shim, service: Service) -> None:
    before, function, after = script_for(SHIM).partition("function slurm_job_submit")
    setup = f"gsub_shim.setup({{ socket = '{service.path}', deadline = 1 }})\n"
    assert shim.order("script", text=before + setup + function + after)["rc"] == 0
    assert shim.submit(JOB, scripted=True).job["min_nodes"] == 2
    service.way = says(reject="gsub: no")
    assert shim.submit(JOB, scripted=True).rc == -1


STRICT = """\
setmetatable(_G, {
  __index = function(_, name) error("no global " .. name, 2) end,
  __newindex = function(_, name, value)
    if type(value) ~= "function" then error("a global " .. name, 2) end
    rawset(_G, name, value)
  end,
})
"""


@pytest.mark.parametrize(
    ("above", "below"),
    [
        pytest.param("", "local gsub = string.gsub\n", id="a local gsub below"),
        pytest.param("local gsub = string.gsub\n", "assert(gsub('a', 'a', 'b') == 'b')\n", id="one above"),
        pytest.param("function gsub() end\n", "", id="a global gsub"),
        pytest.param(STRICT, "", id="no global but functions"),
        pytest.param("string.len = nil\ngetmetatable('').__index = nil\n", "", id="texts without methods"),
    ],
)
def test_a_sites_own_names_and_libraries_do_not_meet_ours(
    shim: Shim, service: Service, above: str, below: str
) -> None:
    text = script_for(SHIM).replace("-- 2\n", "-- 2\n" + below)
    before, function, after = text.partition("function slurm_job_submit")
    setup = f"gsub_shim.setup({{ socket = '{service.path}', deadline = 1 }})\n"
    loaded = shim.order("script", text=above + before + setup + function + after)
    assert (loaded["rc"], loaded["log"]) == (0, [])
    done = shim.submit(JOB, scripted=True)
    assert (done.raised, done.rc, done.job["min_nodes"]) == (None, 0, 2)


@pytest.mark.parametrize("part", ["gsub", "json", "wire", "request", "answer", "tables"])
@pytest.mark.parametrize("fault", ["missing", "cut", "raises"])
def test_a_broken_installation_lets_jobs_pass(shim: Shim, tmp_path: Path, part: str, fault: str) -> None:
    folder = tmp_path / "shim"
    shutil.copytree(SHIM, folder)
    broken = folder / f"{part}.lua"
    if fault == "missing":
        broken.unlink()
    elif fault == "cut":
        text = broken.read_text()
        broken.write_text(text[: text.rindex("\nreturn M")])  # good Lua still
    else:
        broken.write_text("error('no')")
    loaded = shim.order("script", text=script_for(folder))
    assert (loaded["rc"], loaded["modify"]) == (0, True)
    assert len(loaded["log"]) == 1
    assert loaded["log"][0].startswith("error: gsub is left out: ")
    record = {"user_id": 1000, "comment": "gsub:guarded", "job_state": 0}
    assert shim.modify({"min_nodes": 4}, record, scripted=True)["rc"] == 0
    done = shim.submit(JOB, scripted=True)
    assert (done.rc, done.raised, done.job) == (0, None, JOB)


def test_it_finds_its_parts_where_slurmctld_runs(lua: str, tmp_path: Path) -> None:
    shutil.copytree(SHIM, tmp_path / "shim")
    done = subprocess.run(
        [f"lua{lua}", "-e", "slurm = {} print(type(dofile('gsub.lua').submit))"],
        cwd=tmp_path / "shim",
        env={**os.environ, **environment(lua)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("function\n", "")


def test_without_lua_posix_jobs_pass(shim: Shim) -> None:
    forget = """\
for name in pairs(package.loaded) do
  if string.find(name, "posix") then package.loaded[name] = nil end
end
package.path, package.cpath = "", ""
"""
    loaded = shim.order("script", text=forget + script_for(SHIM))
    assert loaded["rc"] == 0
    assert "posix" in loaded["log"][0]
    done = shim.submit(JOB, scripted=True)
    assert (done.rc, done.raised, done.job) == (0, None, JOB)


def test_a_fault_in_the_shim_is_logged_and_the_job_passes(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    # a job_desc that holds what no Slurm's does
    done = shim.submit({**JOB, "user_id": "nobody"})
    assert (done.rc, done.raised, done.writes) == (0, None, [])
    assert done.log[0].startswith("error: gsub: a fault in gsub.lua, the job passes unchanged: ")
    assert shim.submit(JOB).writes  # and the next is asked about as ever


@pytest.mark.parametrize(
    "options",
    [
        {"socket": 7},
        {"socket": ""},
        {"socket": "x" * 200},
        {"deadline": 0},
        {"deadline": 3600},
        {"deadline": "soon"},
        {"failures": 0},
        {"pause": -1},
        {"owner": "root"},
        {"sokcet": "/run/x"},
        7,
    ],
)
def test_setup_keeps_the_defaults_rather_than_fail(shim: Shim, options: object) -> None:
    log = shim.order("setup", options=options)["log"]
    assert options == 7 or [line for line in log if line.startswith("error: gsub: setup: ")]
    done = shim.submit(JOB)
    assert (done.rc, done.job) == (0, JOB)


def test_it_leaves_no_global_behind_and_starts_no_process(shim: Shim, service: Service) -> None:
    shim.setup(socket=str(service.path), deadline=1)
    assert shim.submit(JOB, env={"GSUB": "explain"}).writes
    assert shim.order("globals")["names"] == []
    for path in SOURCE.glob("*.lua"):
        assert not re.search(
            r"\bpopen\b|\bexecute\b|\bfork\b|\bexec[lv]?p?\b|\bsystem\b", path.read_text()
        ), path
