"""What a run measured on its way to the service: by munge, or by way of a file that a later command sends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from gsub import points as delivery
from gsub.points import deliver, deliver_kept, gpu_type
from gsub.service import of_site
from profiler.points import Measured
from profiler.records import new_id
from site_configs.site_model import Site
from tests.unit.profiler.curves.place import measured
from tests.unit.prolog_epilog.agent.munged import munged
from tests.unit.slurm_plugins.keeper.keeping import PATIENCE, kept
from tests.waiting import wait_until

SITE = """\
cluster = "lab"
[slurm]
munge_socket = "{socket}"
[service]
url = "{url}"
user = "root"
"""


def site_file(folder: Path, url: str, socket: str) -> Path:
    path = folder / "client.toml"
    path.write_text(SITE.format(url=url, socket=socket))
    return path


def environment(folder: Path, site: Path | None) -> dict[str, str]:
    state = folder / "state-of-user"
    state.mkdir(exist_ok=True)
    return {"XDG_STATE_HOME": str(state), "GSUB_SITE": str(site or folder / "none.toml")}


def left_behind(folder: Path) -> list[Path]:
    return sorted((folder / "state-of-user" / "gsub" / "points").glob("*.json"))


@pytest.mark.slow
def test_by_munge_to_the_keeper_and_back_as_a_curve(tmp_path: Path) -> None:
    with munged() as munge, kept(tmp_path, munge) as one:
        url = one.service().url
        site = site_file(tmp_path, url, munge.socket)
        first = measured(5.7)
        # A host without a service keeps it, and the next command with one sends it
        assert "is kept" in deliver(first, environment(tmp_path, None))
        (file,) = left_behind(tmp_path)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        environ = environment(tmp_path, site)

        def is_sent() -> bool:
            count = deliver_kept(environ)
            (file.parent / ".tried").unlink(missing_ok=True)
            return count > 0

        wait_until(is_sent, PATIENCE, "the store, which may still be opening")
        assert left_behind(tmp_path) == [] and deliver_kept(environ) == 0
        assert deliver(measured(5.7), environ) == "what was measured is with gsub's service"
        refused = deliver(measured(5.7, cluster="elsewhere"), environ)
        assert "refuses" in refused and left_behind(tmp_path) == []
        from gsub.site import read_site

        found = read_site(environ)
        assert found is not None
        (known,) = of_site(found, timeout=PATIENCE).curves().curves
        assert (known.knee, known.runs, known.gpu_type) == (6, 2, "a100")
        # gsubd's part: the keeper wrote what decisions read
        told = tmp_path / "curves.jsonl"
        wait_until(lambda: told.exists() and first.workload[0] in told.read_text(), PATIENCE, str(told))


def test_it_never_raises_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = measured(5.7)
    assert "no folder" in deliver(one, {"HOME": "/"}) or "lost" in deliver(one, {"HOME": "relative"})
    environ = environment(tmp_path, None)
    for _ in range(delivery._FILES + 5):
        deliver(msgspec.structs.replace(one, id=new_id()), environ)
    assert len(left_behind(tmp_path)) == delivery._FILES
    broken = tmp_path / "broken.toml"
    broken.write_text("cluster = [")
    assert "is kept" in deliver(one, {**environ, "GSUB_SITE": str(broken)})

    def bursts(*_: object) -> tuple[bool, str]:
        raise RuntimeError("\x1b[31mboo")

    monkeypatch.setattr(delivery, "_send", bursts)
    assert deliver(one, environ) == "what was measured is lost: RuntimeError"
    assert deliver_kept(environ) == 0


def test_a_service_that_is_away_is_not_asked_by_every_command(tmp_path: Path) -> None:
    site = site_file(tmp_path, "http://127.0.0.1:9", str(tmp_path / "no-munge"))
    environ = environment(tmp_path, site)
    assert "is kept" in deliver(measured(5.7), environ)
    assert deliver_kept(environ) == 0 and (left_behind(tmp_path)[0].parent / ".tried").exists()
    before = (left_behind(tmp_path)[0].parent / ".tried").stat().st_mtime_ns
    assert deliver_kept(environ) == 0
    assert (left_behind(tmp_path)[0].parent / ".tried").stat().st_mtime_ns == before


def test_what_is_another_clusters_or_old_or_no_file_of_ours(tmp_path: Path) -> None:
    environ = environment(tmp_path, None)
    deliver(measured(5.7, cluster="elsewhere"), environ)
    (file,) = left_behind(tmp_path)
    old = file.with_name("0" * 32 + ".json")
    old.write_bytes(file.read_bytes())
    os.utime(old, (1e9, 1e9))
    link = file.with_name("f" * 32 + ".json")
    link.symlink_to("/etc/passwd")
    assert deliver_kept(environ, Site(cluster="lab")) == 2
    assert left_behind(tmp_path) == [file]
    assert msgspec.json.decode(file.read_bytes(), type=Measured).cluster == "elsewhere"


JOB = """\
JobId=7 JobName=x
   NodeList=n1
   JOB_GRES=gpu:{0}1
     Nodes=n1 CPU_IDs=0-3 Mem=1000 GRES=gpu:{0}1(IDX:2)
"""


@pytest.mark.parametrize(("told", "expected"), [("a100:", "a100"), ("", "h200"), ("1g.10gb:", "1g.10gb")])
def test_the_type_of_its_gpu_as_slurm_says(tmp_path: Path, told: str, expected: str) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{JOB.format(told)}END\n")
    program.chmod(0o755)
    site = tmp_path / "site.toml"
    site.write_text('cluster = "lab"\n[gpu_types.h200]\n[partitions.gpu]\ngpu_type = "h200"\n')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu"}
    environ["GSUB_SITE"] = str(site)
    assert gpu_type(environ) == expected
    assert gpu_type(environ | {"SLURM_JOB_PARTITION": "other"}) == expected.replace("h200", "")
    assert gpu_type(environ | {"PATH": str(tmp_path / "nothing")}) == "h200"
    assert gpu_type({"SLURM_JOB_ID": "7; rm"}) == ""
