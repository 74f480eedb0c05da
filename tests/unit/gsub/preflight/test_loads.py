# ruff: noqa: E501 - a case is a line
"""Module lines, with a stand-in that says what Lmod 8.6 and Environment Modules 5.2 were seen to say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gsub.preflight.loads import loads
from gsub.preflight.values import Finding
from tests.unit.gsub.preflight.conftest import Lay
from tests.unit.gsub.preflight.scripts import HEAD, Case

Told = Callable[..., "list[Finding]"]
LMOD = r"""() { echo "$*" >>calls
case "$*" in
*nope*|*cuda/12.2*|*pytroch*) shift; echo "Lmod has detected the following error: The following module(s) are unknown:"
  for one; do case $one in nope|cuda/12.2|pytroch) echo "\"$one\"";; esac; done; return 1;;
*inner*) echo "Lmod has detected the following error: These module(s) or extension(s) exist but cannot be loaded as requested: \"inner\""
  return 1;;
*conflict*) echo "Lmod has detected the following error: You can only have one compiler loaded."; return 1;;
*avail*) printf '/apps/modules:\ncuda/\ncuda/11.8\ncuda/12.1 <L>\npytorch/2.3(default)\n';;
esac
}"""
TCL = r"""() { echo "$*" >>calls
case "$*" in *nope*) echo "ERROR: Unable to locate a modulefile for 'nope'" >&2; return 1;; esac
}"""
OLD = TCL.replace("return 1", "return 0")


@pytest.fixture
def told(laid: Lay) -> Told:
    def look(script: str, function: str = LMOD, *words: str) -> list[Finding]:
        found = laid(Case("modules", script, words=words))
        return list(
            loads(
                replace(found, environ={**found.environ, "BASH_FUNC_module%%": function} if function else {})
            )
        )

    return look


@pytest.mark.parametrize(
    ("lines", "at", "level", "does"),
    [
        ("module purge\nmodule load cuda/12.2 gcc", 6, "error", "did you mean cuda/12.1, cuda/11.8?"),
        ("ml pytroch", 5, "error", "did you mean pytorch/2.3?"),
        ("module -q load nope", 5, "error", "'module avail' lists what there is"),
        ("module load inner", 5, "error", "'module spider inner' tells what to load first"),
        ("module load nope 2>/dev/null", 5, "warning", "'module avail'"),
        ("module load conflict", 5, "warning", "try it in a shell"),
    ],
)
def test_a_module_that_is_not_there(told: Told, lines: str, at: int, level: str, does: str) -> None:
    found = told(HEAD + lines + "\npython x.py\n")
    assert [(one.line, one.level) for one in found] == [(at, level)]
    assert found[0].do.startswith(does)


@pytest.mark.parametrize(("function", "level"), [(TCL, "error"), (OLD, "error")])
def test_environment_modules(told: Told, function: str, level: str) -> None:
    found = told(HEAD + "module load gcc\nmodule load nope\n", function)
    assert [(one.line, one.level) for one in found] == [(6, level)]


@pytest.mark.parametrize(
    "lines",
    [
        "module load cuda/12.1",
        "module load $CUDA\nmodule load nope",
        "source setup.sh\nmodule load nope",
        "if true; then module load nope; fi",
        "module load nope || true",
        "module load nope || module load gcc",
        "init_site\nmodule load gcc\nf() { module load nope; }",
        "eval $X\nmodule load nope",
        "module restore mine\nmodule load nope",
        "module try-load nope",
        "ml -gcc +nope",
        "apptainer exec i.sif bash -c 'module load nope'",
    ],
)
def test_nothing_is_said(told: Told, lines: str) -> None:
    assert told(HEAD + lines + "\n") == []


def test_a_login_shell_on_the_node_may_know_others(told: Told) -> None:
    assert [one.level for one in told("#!/bin/bash -l\nmodule load nope\n")] == ["warning"]
    assert told(HEAD + "module load nope\n", LMOD, "--export=NONE") == []
    assert told(HEAD + "module load nope\n", LMOD, "-M", "other") == []


def test_only_the_module_lines_are_run(told: Told) -> None:
    told(
        HEAD
        + "touch ran\nmodule use /x\nmodule list\nX=$(touch ran)\nmodule load 'a;touch ran' '$(touch ran)' b\ntouch ran\n"
    )
    assert Path("calls").read_text().splitlines() == ["use /x", "load a;touch ran $(touch ran) b"]
    assert not Path("ran").exists()


def test_a_start_up_file_of_the_users_own_is_not_read(laid: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    script = HEAD + "module load nope\n"
    found = laid(Case("own", script, {"own.sh": "touch ran; module() { touch ran; }\n"}))
    path = Path("own.sh").resolve()
    if path.stat().st_uid == 0:  # root has nothing that is not the system's
        os.chown(path, 1234, -1)
        monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert list(loads(replace(found, environ={"BASH_ENV": str(path), "MODULESHOME": str(path.parent)}))) == []
    assert not Path("ran").exists()
