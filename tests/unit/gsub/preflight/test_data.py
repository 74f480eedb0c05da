# ruff: noqa: E501 - a case is a line
"""Data that a script names, and room for what it writes: read and asked for, within bounds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gsub.preflight import data, sample, space
from gsub.preflight.places import mount_of
from gsub.preflight.space import Quota, quotas
from tests.unit.gsub.preflight.conftest import Lay, Look
from tests.unit.gsub.preflight.scripts import HEAD, TRAIN, Case

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
    ("args", "files", "says"),
    [
        ("--data data", {"data/a/b/x.bin": LFS}, "pointer of Git LFS"),
        ("--train_file=x.jsonl", {"x.jsonl": "<!DOCTYPE html>\n<html>"}, "page of HTML"),
        ("--pretrained model.bin", {"model.bin": ""}, "model.bin is empty"),
        ("--val-data v.csv", {}, "not there: v.csv"),
        ("--train-files a.csv b.csv", {"a.csv": "1\n"}, "not there: b.csv"),
        ("data.root=./d/x", {"d/x": LFS}, "pointer of Git LFS"),
        ("--data data", {"data/x.txt": "<html>"}, ""),
        ("--data data", {"data/.hidden": "", "data/x.npy": "\x93NUMPY"}, ""),
        ("--data data --output x.csv --train-out y.csv --checkpoint-save z.pt", {"data/x": "1"}, ""),
        ("--data later --dataset imagenet --config base --test", {}, ""),
        ("--resume auto --data=$DATA --eval.csv", {}, ""),
    ],
)
def test_a_sample_is_read(look: Look, args: str, files: dict[str, str], says: str) -> None:
    verdict = look(Case("data", HEAD + f"srun python train.py {args}\n", {**TRAIN, **files}))
    found = [one for one in verdict.findings if one.check == "data"]
    assert [one.level for one in found] == ["warning"] * bool(says)
    assert says in "".join(one.what for one in found)


def test_what_a_container_sees_is_not_asked_for(look: Look) -> None:
    verdict = look(Case("x", HEAD + "apptainer exec i.sif python /t.py --train-file x.csv\n"))
    assert verdict.findings == ()


def test_a_first_file_that_may_not_be_read_is_told_of(look: Look) -> None:
    case = Case("x", HEAD + "python train.py --data d\n", {**TRAIN, "d/x.csv": "1"}, modes={"d/x.csv": 0})
    found = [one for one in look(case).findings if one.check == "data"]
    assert [(one.level, "x.csv in it" in one.what) for one in found] == [("warning", True)]


def test_a_file_system_that_does_not_answer_is_left_behind(
    laid: Lay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import json, sys, time\npaths = json.load(sys.stdin)\nprint('{}')\n"
        "print(json.dumps(dict(path=paths[0], file=paths[0], errno=0, bytes=1, head='')), flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(sample, "__file__", str(slow))
    found = laid(
        Case("x", HEAD + "python train.py --data a --val-data b --test-data c\n", {"a": "1", "b": "1"})
    )
    told = list(data.data(found))
    assert [(one.level, one.what) for one in told] == [
        ("warning", "--val-data: b did not answer within 1.5 s")
    ]


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        # quota -w -p of Linux' quota tools 4, and lfs quota -q
        ("Disk quotas for user ada (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n"
         "     /dev/sdb1   1000*    900   1200 1700000000     7     0     0       0\n", [Quota("/dev/sdb1", (1000, 900, 1200), (7, 0, 0))]),
        ("Disk quotas for user ada (uid 1000): none\n", []),
        ("nas:/home 5 0 0 7 10 10\n", [Quota("nas:/home", (5, 0, 0), (7, 10, 10))]),
        ("nas:/a/very/long/export/name\n                  5 0 0 0 7 10 10 0\n", [Quota("nas:/a/very/long/export/name", (5, 0, 0), (7, 10, 10))]),
        ("     /lustre 307200* 1024 2048 - 12 0 0 -\n", [Quota("/lustre", (307200, 1024, 2048), (12, 0, 0))]),
        ("quota: error while getting quota from nas:/x for ada: Connection refused 1 2\n", []),
    ],
)  # fmt: skip
def test_rows_of_quota(said: str, rows: list[Quota]) -> None:
    assert list(quotas(said)) == rows


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{} 2097152* 1048576 2097152 0 7 0 0 0", "your quota of space is used up (2.0 GiB of 2.0 GiB)"),
        ("{} 5 0 0 0 990 1000 2000 0", "your quota of files is nearly used up (990 of 1000)"),
        ("{} 5 0 0 0 1500* 1000 2000 99", "your quota of files is exceeded"),
        ("{} 5 10 20 0 5 10 20 0", ""),
        ("/dev/elsewhere 9* 5 5 0 9 0 0 0", ""),
    ],
)
def test_a_quota_is_told_of(laid: Lay, home: Path, row: str, says: str) -> None:
    found = laid(Case("x", HEAD + "true\n"))
    program = home / "bin/quota"
    program.write_text(
        f"#!/bin/sh\necho '{row.format(mount_of(os.path.realpath(found.folder)).source)}'\nexit 1\n"
    )
    program.chmod(0o755)
    try:
        told = [
            one
            for one in space.space(replace(found, environ={"PATH": f"{home}/bin:/usr/bin:/bin"}))
            if "quota" in one.what
        ]
    finally:
        program.unlink()
    assert [one.level for one in told] == ["warning"] * bool(says)
    assert not says or told[0].what.startswith(says)


@pytest.mark.parametrize(
    ("blocks", "inodes", "says"),
    [(0, 9999, "no space left"), (1000, 9999, "only 3 MiB"), (1 << 20, 0, "inodes are used up"), (1 << 20, 9, "only 9 more"),
     (1 << 20, 9999, "")],
)  # fmt: skip
def test_a_full_file_system(
    laid: Lay, monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int, says: str
) -> None:
    one = SimpleNamespace(f_blocks=9, f_bavail=blocks, f_frsize=4096, f_files=9, f_favail=inodes)
    found = laid(Case("x", HEAD + "true\n"))
    monkeypatch.setattr(os, "statvfs", lambda path: one)
    told = [one.what for one in space.space(found)]
    assert len(told) == bool(says) and says in "".join(told)
