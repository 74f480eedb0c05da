"""What Slurm lets gsub-act do, found out before it begins, from what Slurm's commands say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_plugins.act.slurm import Commands, Whom

CONFIG = """\
Configuration data as of 2026-11-22T15:00:00
AccountingStorageType   = {accounting}
ClusterName             = Lab
SlurmUser               = slurm(64030)
SLURM_VERSION           = {version}
"""
US = Whom(890, "gsub-act")


def rights(folder: Path, whom: Whom = US, *, level: str = "Operator", accounting: str = "accounting_storage/slurmdbd",
           config: str = CONFIG, database: int = 0):  # fmt: skip
    (folder / "config").write_text(config.format(accounting=accounting, version="22.05.8"))
    refused = "echo sacctmgr: error: Sending PersistInit msg: Connection refused >&2"
    accounts = f"{refused}; exit {database}" if database else f"echo {level}"
    for name, text in (("scontrol", f"cat {folder}/config"), ("sacctmgr", accounts)):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return Commands(lambda: {"PATH": f"{folder}:{os.environ['PATH']}"}, whom).rights()


@pytest.mark.parametrize(
    ("level", "enough"), [("Operator", True), ("Administrator", True), ("None", False), ("", False)]
)
def test_an_operator_may(tmp_path, level, enough):
    found = rights(tmp_path, level=level)
    assert (found.enough, found.cluster, found.slurm_uid) == (enough, "lab", 64030)
    if not enough:
        assert "Operator" in found.why and "adminlevel=Operator" in found.fix


@pytest.mark.parametrize("accounting", ["accounting_storage/none", "(null)"])
def test_without_slurmdbd_nobody_is_an_operator(tmp_path, accounting):
    found = rights(tmp_path, accounting=accounting)
    assert found.enough is False and "--as-slurm-user" in found.fix


def test_slurm_user_only_where_it_is_said(tmp_path):
    assert rights(tmp_path, Whom(64030, "slurm")).enough is False
    assert rights(tmp_path, Whom(64030, "slurm", as_slurm_user=True)).enough is True
    assert rights(tmp_path, Whom(0, "root", as_slurm_user=True)).enough is False


def test_a_database_that_is_away_is_no_answer(tmp_path):
    found = rights(tmp_path, database=1)
    assert found.enough is None and found.cluster == "lab"


def test_a_controller_that_is_away_is_no_answer(tmp_path):
    assert (
        rights(tmp_path, config="slurm_load_ctl_conf error: Unable to contact slurm controller\n").enough
        is None
    )
