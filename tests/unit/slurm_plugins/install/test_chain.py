"""chain.lua under every Lua: a site's rules mean what they meant, and gsub is asked after them, or it is not there."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugins.install.job_submit import chained, unchained
from slurm_plugins.install.layout import Layout
from tests.unit.slurm_plugins.lua.conftest import lua, service, shim  # noqa: F401 - fixtures
from tests.unit.slurm_plugins.lua.lua import SHIM, Shim, environment
from tests.unit.slurm_plugins.lua.servers import Service, says

SLURMCTLD = Path(__file__).with_name("slurmctld.lua")
MODIFY = "function slurm_job_modify() return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"
BODY = """\
(job_desc, part_list, submit_uid)
  if job_desc.comment == "reject" then slurm.log_user("no") return slurm.ERROR end
  if job_desc.comment == "raise" then error("in the site's rule") end
  job_desc.partition = "site"
  return slurm.SUCCESS
end
"""
RULES = "function slurm_job_submit" + BODY

# Stands for the shim where only the chain is looked at: notes that it was asked, and what it found.
ASKED = """\
local M = {}
function M.setup(settings) M.settings = settings return M end
function M.modify() return slurm.SUCCESS end
function M.submit(job_desc, part_list, submit_uid)
  assert(part_list.gpu and submit_uid == 1000)
  job_desc.asked = (job_desc.asked or 0) + 1
  job_desc.name = "found " .. tostring(job_desc.partition)
  return slurm.SUCCESS
end
return M
"""

STRICT = """\
local mt = getmetatable(_G)
if mt == nil then mt = {} setmetatable(_G, mt) end
mt.__declared = {}
local function what() local d = debug.getinfo(3, "S") return d and d.what or "C" end
mt.__newindex = function(t, n, v)
  if not mt.__declared[n] then
    local w = what()
    if w ~= "main" and w ~= "C" then error("assign to undeclared variable '" .. n .. "'", 2) end
    mt.__declared[n] = true
  end
  rawset(t, n, v)
end
mt.__index = function(t, n)
  if not mt.__declared[n] and what() ~= "C" then error("variable '" .. n .. "' is not declared", 2) end
  return rawget(t, n)
end
"""

ALL, NONE = ("plain", "again"), ()
# A site's script, and for which of its jobs gsub is asked.
STYLES = {
    "function": (RULES + MODIFY, ALL),
    "assignment": ("slurm_job_submit = function" + BODY + MODIFY, ALL),
    "a local, exported at the end": (
        "local function submit" + BODY + "slurm_job_submit = submit\n" + MODIFY,
        ALL,
    ),
    "through _G": ("_G.slurm_job_submit = function" + BODY + MODIFY, ALL),
    "rawset": ("rawset(_G, 'slurm_job_submit', function" + BODY.rstrip() + ")\n" + MODIFY, ALL),
    "defined twice": ("function slurm_job_submit() return -1 end\n" + RULES + MODIFY, ALL),
    "wrapped by the site": (
        RULES
        + "local old = slurm_job_submit\n"
        + "function slurm_job_submit(j, p, u) local rc = old(j, p, u) j.partition = j.partition .. '2' return rc end\n"
        + MODIFY,
        ALL,
    ),
    "a table that can be called": (
        "slurm_job_submit = setmetatable({}, { __call = function(_, job_desc, part_list, submit_uid)\n"
        + BODY.split("\n", 1)[1].rstrip()
        + "})\n"
        + MODIFY,
        ALL,
    ),
    "strict before": (STRICT + RULES + MODIFY, ALL),
    "strict after": (RULES + STRICT + MODIFY, ALL),
    "a metatable of its own": (
        "setmetatable(_G, { __newindex = function(t, k, v) rawset(t, k, v) end, __metatable = 'mine' })\n"
        + RULES
        + MODIFY,
        ALL,
    ),
    "globals from a table": (
        "local mine = {}\nsetmetatable(_G, { __index = mine, __newindex = mine })\n" + RULES + MODIFY,
        ALL,
    ),
    "another file": ("dofile('{folder}/rules.lua')\n" + MODIFY, ALL),
    "its last call in its place": (
        RULES
        + "local function finish(rc) return rc end\n"
        + MODIFY.replace("return slurm.SUCCESS\n", "return finish(0)\n"),
        ALL,
    ),
    "no result at the end": (RULES + "function slurm_job_modify() end\n", ALL),
    "an early return": (
        RULES + "function slurm_job_modify() end\nif true then return 0 end\nerror('never')\n",
        ALL,
    ),
    "many calls while it loads": (
        RULES
        + "local function f(n) return n > 0 and f(n - 1) or 0 end\nfor i = 1, 2000 do f(3) end\n"
        + MODIFY,
        ALL,
    ),
    "tail calls while it loads": (
        RULES
        + "local function f(n) if n == 0 then return 0 end return f(n - 1) end\nfor i = 1, 100 do f(3) end\n"
        + MODIFY,
        ALL,
    ),
    "a tail call a thousand levels down": (
        RULES
        + "local function last() return 0 end\n"
        + "local function f(n) if n == 0 then return last() end local found = f(n - 1) return found end\nf(1500)\n"
        + MODIFY,
        ALL,
    ),
    "coroutines": (
        "local c = coroutine.wrap(function() coroutine.yield(1) return 2 end)\nc() c()\n" + RULES + MODIFY,
        ALL,
    ),
    "pcall and errors while it loads": (
        "pcall(error, 'x')\npcall(function() error({}) end)\n" + RULES + MODIFY,
        ALL,
    ),
    "keeps counts": (
        "count = 0\n"
        + RULES.replace("\n", "\n  count = count + 1 slurm.log_info('%d', count)\n", 1)
        + MODIFY,
        ALL,
    ),
    "returns nothing": (RULES.replace("  return slurm.SUCCESS\n", "") + MODIFY, ALL),
    "returns a text": (RULES.replace("return slurm.SUCCESS", "return 'fine'") + MODIFY, ALL),
    "returns a number as text": (RULES.replace("return slurm.SUCCESS", "return '-1'") + MODIFY, NONE),
    "returns true": (RULES.replace("return slurm.SUCCESS", "return true") + MODIFY, ALL),
    "returns a code": (RULES.replace("return slurm.SUCCESS", "return 2021") + MODIFY, NONE),
    "returns several": (RULES.replace("return slurm.SUCCESS", "return 0, 'more'") + MODIFY, ALL),
    "modify calls submit": (
        RULES
        + "function slurm_job_modify(j, r, p, u) local rc = slurm_job_submit(j, p, u) return rc end\nreturn 0\n",
        ALL,
    ),
    "modify ends in submit": (
        RULES + "function slurm_job_modify(j, r, p, u) return slurm_job_submit(j, p, u) end\nreturn 0\n",
        ALL,
    ),
    "calls itself": (
        RULES.replace(
            "\n",
            "\n  if not job_desc.deep then job_desc.deep = 1 slurm_job_submit(job_desc, part_list) end\n",
            1,
        )
        + MODIFY,
        ALL,
    ),
    "libraries taken away": ("pcall, rawset, tonumber, debug.getinfo, _G.next = nil\n" + RULES + MODIFY, ALL),
    "log functions of its own": ("slurm.log_info = function() end\n" + RULES + MODIFY, ALL),
    "a first line for a shell": ("#!/usr/bin/lua\n" + RULES + MODIFY, ALL),
    # gsub is not there, and all else is as it would be
    "a hook of its own": ("debug.sethook(function() end, '', 1000)\n" + RULES + MODIFY, NONE),
    "no hook": ("debug.sethook()\n" + RULES + MODIFY, NONE),
    "defined when it is first asked": (
        "function slurm_job_submit(...) slurm_job_submit = real return real(...) end\nfunction real"
        + BODY
        + MODIFY,
        ("plain",),
    ),
    # what does not load without us does not load with us, for the same reason
    "only modify": (MODIFY, NONE),
    "only submit": (RULES, NONE),
    "an error while it loads": (RULES + "error('at load')\n" + MODIFY, NONE),
    "an error in a file it loads": ("dofile('{folder}/nothing.lua')\n" + RULES + MODIFY, NONE),
    "does not compile": (RULES + "function (\n", NONE),
    "returns a failure": (RULES + "function slurm_job_modify() end\nreturn -1\n", NONE),
    "submit is no function": ("slurm_job_submit = 7\n" + MODIFY, NONE),
    "empty": ("", NONE),
}


def layout(folder: Path) -> Layout:
    found = Layout.under(folder, folder / "slurm.conf")
    return dataclasses.replace(found, run=folder)


def with_shim(folder: Path, text: str = ASKED) -> Path:
    libexec = folder / "libexec"
    libexec.mkdir()
    shutil.copy(SHIM / "chain.lua", libexec)
    (libexec / "gsub.lua").write_text(text)
    return libexec


def run(lua: str, script: Path, text: bytes) -> list[str]:  # noqa: F811
    script.write_bytes(text)
    done = subprocess.run(
        [f"lua{lua}", str(SLURMCTLD), str(script)],
        env={**os.environ, **environment(lua)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def asked(lines: list[str]) -> tuple[str, ...]:
    """The jobs about which gsub was asked, once each and after the site."""
    rows = [line.split(" ") for line in lines if line.startswith("submit ")]
    for row in rows:
        assert row[-1] in ("1", "nil")
    assert "modified nil 1" not in lines
    assert "modified site 1" not in lines
    return tuple(row[1] for row in rows if row[-1] == "1")


def without_us(lines: list[str]) -> list[str]:
    plain = [re.sub(r" (?:found \w+|nil) (?:1|nil)$", "", line) for line in lines if line != NOTE]
    return [line for line in plain if not line.startswith("hook ")]


NOTE = "info gsub: asked after the site's own slurm_job_submit"


@pytest.mark.parametrize("style", STYLES)
def test_a_sites_rules_mean_what_they_meant(lua: str, tmp_path: Path, style: str) -> None:  # noqa: F811
    with_shim(tmp_path)
    text, expected = STYLES[style]
    (tmp_path / "rules.lua").write_text(RULES)
    site = text.replace("{folder}", str(tmp_path)).encode()
    script = tmp_path / "job_submit.lua"
    # three lines more, so that errors name the same line
    head, rest = (site[:15], site[15:]) if site.startswith(b"#!") else (b"", site)
    before = run(lua, script, head + b"\n\n\n" + rest)
    after = run(lua, script, chained(site, layout(tmp_path)))
    assert without_us(after) == without_us(before)
    assert asked(after) == expected
    assert asked(before) == ()
    loaded = before[0].startswith("hook ") or any(line.startswith("submit ") for line in before)
    hooks = [line for line in after if line.startswith("hook ")]
    assert not loaded or style == "a hook of its own" or hooks == ["hook nil"]
    assert not expected or style.startswith("log functions") or NOTE in after


def test_a_site_whose_globals_raise_is_left_alone(lua: str, tmp_path: Path) -> None:  # noqa: F811
    with_shim(tmp_path)
    # only the main function may ask for a global that is none
    strict = STRICT.replace(
        'not mt.__declared[n] and what() ~= "C"', 'not mt.__declared[n] and what() == "Lua"'
    )
    assert strict != STRICT
    site = (strict + MODIFY).encode()
    script = tmp_path / "job_submit.lua"
    after = run(lua, script, chained(site, layout(tmp_path)))
    assert after[0].startswith("error gsub is left out: ")
    assert "'slurm_job_submit' is not declared" in after[0]
    assert after[1:] == run(lua, script, b"\n\n\n" + site) == ["missing slurm_job_submit"]


CALLS = {
    "from a coroutine": "coroutine.wrap(function() {call} end)()",
    "from sixty functions": "local function f(n) if n == 0 then {call} else f(n - 1) n = n end end f(60)",
}


@pytest.mark.parametrize("style", CALLS)
def test_where_no_script_is_found_nothing_is_chained(lua: str, tmp_path: Path, style: str) -> None:  # noqa: F811
    libexec = with_shim(tmp_path)
    call = f"local fine, why = pcall(dofile('{libexec}/chain.lua'), {{}}) slurm.log_info('%s', tostring(why))"
    site = (CALLS[style].format(call=call) + "\n" + RULES + MODIFY).encode()
    found = run(lua, tmp_path / "job_submit.lua", site)
    assert "job_submit.lua is not on the stack" in found[0]
    assert asked(found) == ()
    assert without_us(found[1:]) == without_us(
        run(lua, tmp_path / "job_submit.lua", b"\n" + (RULES + MODIFY).encode())
    )


def test_the_chain_finds_the_shim_where_slurmctld_runs(lua: str, tmp_path: Path) -> None:  # noqa: F811
    libexec = with_shim(tmp_path)
    (libexec / "job_submit.lua").write_text("dofile('chain.lua')({})\n" + RULES + MODIFY)
    done = subprocess.run(
        [f"lua{lua}", str(SLURMCTLD), "job_submit.lua"],
        cwd=libexec,
        env={**os.environ, **environment(lua)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert asked(done.stdout.splitlines()) == ALL


def dangling(libexec: Path) -> None:
    shutil.rmtree(libexec)
    libexec.symlink_to("/nonexistent")


def without(name: str) -> Callable[[Path], None]:
    return lambda libexec: (libexec / name).unlink()


def holding(name: str, content: bytes) -> Callable[[Path], None]:
    def broken(libexec: Path) -> None:
        (libexec / name).write_bytes(content)

    return broken


def a_folder(libexec: Path) -> None:
    (libexec / "chain.lua").unlink()
    (libexec / "chain.lua").mkdir()


BREAKS: dict[str, Callable[[Path], None]] = {
    "the folder is gone": shutil.rmtree,
    "a link to nowhere": dangling,
    "chain.lua is gone": without("chain.lua"),
    "chain.lua is a folder": a_folder,
    "chain.lua is not Lua": holding("chain.lua", b"\x7fELF\0\1"),
    "chain.lua is another thing": holding("chain.lua", b"return 7"),
    "gsub.lua is gone": without("gsub.lua"),
    "gsub.lua is empty": holding("gsub.lua", b""),
    "gsub.lua raises": holding("gsub.lua", b"error({})"),
    "gsub.lua lacks setup": holding("gsub.lua", b"return { submit = function() end }"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_shim_leaves_the_site_as_it_was(lua: str, tmp_path: Path, broken: str) -> None:  # noqa: F811
    libexec = with_shim(tmp_path)
    BREAKS[broken](libexec)
    site = (RULES + MODIFY).encode()
    script = tmp_path / "job_submit.lua"
    after = run(lua, script, chained(site, layout(tmp_path)))
    assert after[0].startswith("error gsub is left out: ")
    assert without_us(after[1:]) == without_us(run(lua, script, b"\n\n\n" + site))
    assert asked(after) == ()


@pytest.mark.needs("lua5.1")
def test_chain_lua_cut_anywhere_leaves_the_site_as_it_was(tmp_path: Path) -> None:
    libexec = with_shim(tmp_path)
    chain = (SHIM / "chain.lua").read_bytes()
    site = (RULES + MODIFY).encode()
    script = tmp_path / "job_submit.lua"
    before = without_us(run("5.1", script, b"\n\n\n" + site))
    for length in range(0, len(chain) - 1, 151):
        (libexec / "chain.lua").write_bytes(chain[:length])
        after = run("5.1", script, chained(site, layout(tmp_path)))
        assert after[0].startswith("error gsub is left out: "), length
        assert without_us(after[1:]) == before


@pytest.mark.parametrize(
    ("result", "rc"),
    [("slurm.ERROR", "-1"), ("2021", "2021"), ("nil", "0"), ("'x'", "0"), ("error('fault')", "0"), ("", "0")],
)
def test_only_a_rejection_of_gsubs_changes_the_result(lua: str, tmp_path: Path, result: str, rc: str) -> None:  # noqa: F811
    with_shim(tmp_path, ASKED.replace("return slurm.SUCCESS", f"return {result}"))
    after = run(lua, tmp_path / "job_submit.lua", chained((RULES + MODIFY).encode(), layout(tmp_path)))
    assert [line for line in after if line.startswith("submit plain")] == [
        f"submit plain true {rc} site found site 1"
    ]


def test_settings_reach_the_shim(lua: str, tmp_path: Path) -> None:  # noqa: F811
    with_shim(tmp_path, ASKED.replace("M.settings = settings", "slurm.log_info('%s', settings.socket)"))
    after = run(lua, tmp_path / "job_submit.lua", chained((RULES + MODIFY).encode(), layout(tmp_path)))
    assert f"info {tmp_path}/decision.sock" in after


def test_the_site_finds_lua_as_without_us(lua: str, tmp_path: Path) -> None:  # noqa: F811
    """No global, no loaded module, no hook and no search path of ours is left to the site's script."""
    for part in SHIM.glob("*.lua"):
        (tmp_path / "libexec").mkdir(exist_ok=True)
        shutil.copy(part, tmp_path / "libexec")
    look = """\
local names = {}
for _, t in pairs({ G = _G, loaded = package.loaded, preload = package.preload, string = string }) do
  for name in pairs(t) do names[#names + 1] = _ .. "." .. tostring(name) end
end
table.sort(names)
slurm.log_info("%s", table.concat(names, " ") .. package.path .. package.cpath .. tostring(getmetatable(_G)))
"""
    site = (look + RULES + MODIFY).encode()
    script = tmp_path / "job_submit.lua"
    after = run(lua, script, chained(site, layout(tmp_path)))
    assert NOTE in after
    assert without_us(after) == without_us(run(lua, script, b"\n\n\n" + site))


GPU = {"tres_per_node": "gres:gpu:2"}


def real(service: Service) -> Layout:  # noqa: F811
    return dataclasses.replace(layout(service.path.parent), libexec=SHIM)


def patient(text: bytes) -> str:
    return text.replace(b'decision.sock" }', b'decision.sock", deadline = 1 }').decode()


@pytest.mark.parametrize(
    "site", [None, (RULES.replace("job_desc.partition", "job_desc.account") + MODIFY).encode()]
)
def test_the_real_shim_asks_the_service(shim: Shim, service: Service, site: bytes | None) -> None:  # noqa: F811
    loaded = shim.order("script", text=patient(chained(site, real(service))))
    assert (loaded["rc"], loaded["modify"]) == (0, True)
    assert loaded["log"] == [NOTE.replace(" ", ": ", 1)]
    done = shim.submit(GPU, scripted=True)
    assert (done.rc, done.job["min_nodes"], done.job.get("account")) == (0, 2, "site" if site else None)
    service.way = says(reject="gsub: no")
    assert shim.submit(GPU, scripted=True).rc == -1
    if site:
        done = shim.submit({**GPU, "comment": "reject"}, scripted=True)
        assert (done.rc, done.said, done.writes) == (-1, ["no"], [])


def test_ours_for_a_site_without_rules_is_lua_for_every_version(shim: Shim, service: Service) -> None:  # noqa: F811
    text = chained(None, real(service))
    assert unchained(text) is None
    assert shim.order("script", text=text.decode())["rc"] == 0
