"""What gsubd sees of gsub-act and of the shim: wanted and dead, named and broken."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from site_configs.site import parse_site
from slurm_plugins.act.ask import does_answer, is_wanted
from slurm_plugins.install.job_submit import chained, shim_folder
from slurm_plugins.install.layout import SHIM, Layout, part
from slurm_plugins.service.partners import Partners, find_fault
from tests.unit.slurm_plugins.service.serving import serving

ENFORCE = 'cluster = "lab"\n[policy]\nmode = "enforce"\n'
PARTITION = 'cluster = "lab"\n[partitions.gpu]\nmode = "enforce"\n'
ACCOUNT = 'cluster = "lab"\n[accounts.nlp]\nmode = "enforce"\n'
NO_RETRIES = "[resubmit]\nenabled = false\n"
CANCELS = "[alerts]\nmail = true\ncancel = true\n"


@pytest.mark.case("users 3")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('cluster = "lab"\n', False),
        (ENFORCE.replace("enforce", "advise"), False),
        (ENFORCE, True),
        (PARTITION, True),
        (ACCOUNT, True),
        (ENFORCE + NO_RETRIES, False),
        (ENFORCE + NO_RETRIES + CANCELS, True),
    ],
)
def test_where_gsub_act_is_wanted(text: str, wanted: bool) -> None:
    assert is_wanted(parse_site(text)) is wanted


@pytest.mark.case("users 3")
def test_wanted_and_dead_is_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = parse_site(PARTITION)
    act = tmp_path / "act.sock"
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    caplog.set_level(logging.INFO)
    partners = Partners(lambda: site, act, env)
    partners.look()
    partners.look()
    assert partners.act_up == 0.0 and caplog.text.count("gsub-act is wanted and does not answer") == 1
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(act))
        partners.look()
        assert partners.act_up == 0.0, "a socket that nobody listens on, as one that was killed leaves it"
        listening.listen()
        partners.look()
        assert partners.act_up == 1.0 and "no longer: gsub-act is wanted" in caplog.text
        site = parse_site('cluster = "lab"\n')
        partners.look()
        assert partners.act_up is None
    assert not does_answer(act)
    assert Partners(lambda: parse_site(ENFORCE), None, env).act_up is None


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A host with a job_submit.lua, chained, and the shim that it names."""
    layout = Layout(tmp_path / "slurm.conf", libexec=tmp_path / 'lib"e\u00e4xec')
    layout.libexec.mkdir()
    for name in SHIM:
        (layout.libexec / name).write_bytes(part("slurm_plugins", f"lua/{name}"))
    layout.job_submit.write_bytes(chained(None, layout))
    assert shim_folder(layout.job_submit.read_bytes()) == layout.libexec
    return layout.libexec


@pytest.mark.parametrize("name", SHIM)
def test_a_shim_that_is_not_whole_is_seen(shim: Path, name: str) -> None:
    script, file = shim.parent / "job_submit.lua", shim / name
    whole = file.read_bytes()
    assert find_fault(script) == ""
    file.write_bytes(b"-- another release\n" + whole)
    assert find_fault(script) == ""
    for cut in (b"", whole[: len(whole) // 2], whole[:-1]):
        file.write_bytes(cut)
        assert find_fault(script) == f"{file} is cut short"
    file.unlink()
    assert "No such file" in (find_fault(script) or "")
    file.symlink_to("/nowhere")
    assert "No such file" in (find_fault(script) or "")


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        (None, None),
        (b"function slurm_job_submit() return 0 end\n", None),
        (b'-- dofile("/usr/libexec/gsub/gsub.lua")\n', None),
        (
            b'local ok, shim = pcall(function() return assert(dofile("/opt/x/gsub.lua"), "") end) -- 1\n',
            "/opt/x",
        ),
        (b"dofile('/opt/x/chain.lua')\n", "/opt/x"),
    ],
)
def test_no_shim_is_no_fault_and_one_that_is_named_is_found(
    tmp_path: Path, text: bytes | None, folder: str | None
) -> None:
    script = tmp_path / "job_submit.lua"
    if text is not None:
        script.write_bytes(text)
        assert shim_folder(text) == (None if folder is None else Path(folder))
    assert (find_fault(script) is None) is (folder is None)


@pytest.mark.case("users 3", "site_files 1")
def test_the_metrics_tell(tmp_path: Path) -> None:
    with serving(tmp_path) as gsubd:
        partners = gsubd.daemon.partners
        _, page = gsubd.get("/metrics")
        assert "gsub_act_up" not in _samples(page) and "gsub_topology_ok" not in _samples(page)
        partners.act_up, partners.shim_ok = 0.0, 0.0
        status, page = gsubd.get("/metrics")
        assert status == 200 and "gsub_act_up 0\n" in page and "gsub_shim_ok 0\n" in page


def _samples(page: str) -> str:
    return "\n".join(line for line in page.splitlines() if not line.startswith("#"))
