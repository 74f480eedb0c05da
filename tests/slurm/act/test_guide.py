"""docs/gsub-act.md: its tables are the program's, and its commands run."""

from __future__ import annotations

import re

import pytest

from tests.slurm.act.conftest import Acting
from tests.unit.slurm_plugins.act.test_guide import GUIDE


@pytest.mark.root
def test_the_commands_run(acting: Acting) -> None:
    """Those of root on the controller's host, with this cluster's places; its user and unit are there already."""
    cluster = acting.cluster
    text = cluster.paths.site.read_text()
    lines = re.findall(r"^controller# (.*)$", GUIDE.read_text(), re.MULTILINE)
    left_out = [line for line in lines if line.startswith(("useradd", "install"))]
    assert len(left_out) == 2 and len(lines) == 11
    try:
        for line in lines:
            if line in left_out:
                continue
            here = line.replace("/etc/gsub", str(cluster.paths.etc)).replace(
                "/var/lib/gsub-act", str(cluster.paths.act_state)
            )
            if "admin mode" in line:
                here += (
                    f" --force --yes --metrics=127.0.0.1:{cluster.ports.gsubd} --prefix={cluster.paths.root}"
                )
            done = cluster.run(["bash", "-c", here])
            said = done.stdout + done.stderr
            # an operator that is there already is no error of the guide's
            assert done.returncode == 0 or "Nothing" in said, f"{here}: {said}"
            if "adminlevel" in line and "show" in line:
                assert said.strip() == "Operator"
    finally:
        cluster.write_site(text)
        in_force(acting)


def in_force(acting: Acting) -> None:
    """Wait until gsub-act enforces again: it looks at the site file once a second."""
    job = acting.waiting()
    acting.wait(lambda: acting.ask("hold", job)["result"] == "done")
    assert acting.ask("release", job)["result"] == "done"
