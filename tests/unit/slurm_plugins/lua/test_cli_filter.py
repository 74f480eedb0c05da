"""Advice at the client: said where it helps, silent otherwise, never in the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.slurm_plugins.lua.lua import SHIM, Shim

TEXT = (SHIM / "cli_filter.lua").read_text()

# What sbatch of 22.05 says of options that were not given; newer ones leave some of these out.
PLAIN: dict[str, Any] = {
    "type": "sbatch",
    "ntasks-per-gpu": "-2",
    "requeue": "unset",
    "deadline": "Unknown",
    "overcommit": "unset",
    "exclusive": "unset",
    "nodes": "1-0",
    "ntasks": "1",
}
GPU = {**PLAIN, "gpus": "2"}


def advice(shim: Shim, *components: dict[str, Any], env: dict[str, str] | None = None) -> list[str]:
    reply = shim.order("filter", text=TEXT, components=components, env=env or {})
    assert reply["loaded"] == 0
    assert set(reply["results"]) == {0}  # never an error, whatever it is told
    for line in reply["log"]:
        assert line.startswith("info: gsub: ")
        assert "\n" not in line
    return [line.removeprefix("info: gsub: ") for line in reply["log"]]


SAYS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    (
        {**GPU, "type": "salloc"},
        {"GSUB": "off"},
        "salloc does not send its environment; say --comment=gsub:off",
    ),
    (
        {**GPU, "type": "srun"},
        {"GSUB": "explain"},
        "srun does not send its environment; say --comment=gsub:explain",
    ),
    ({**GPU, "type": "srun"}, {"GSUB_REPACK": "yes"}, "say --comment=gsub:repack=yes"),
    ({**GPU, "export": "NONE"}, {"GSUB": "off"}, "--export leaves it out; say --comment=gsub:off"),
    ({**GPU, "export": "HOME,GSUBX"}, {"GSUB": "off"}, "--export leaves it out"),
    (
        {**GPU, "export": "NONE"},
        {"GSUB_RETUNE": "both"},
        "GSUB_RETUNE is not seen: --export leaves it out; say --comment=gsub:retune=both",
    ),
    (
        {**GPU, "type": "srun"},
        {"GSUB_SENSITIVITY": "off"},
        "srun does not send its environment; say --comment=gsub:sensitivity=off",
    ),
    ({**PLAIN, "gres": "gres:gpu:a100:1", "export": "NIL"}, {"GSUB": "off"}, "--export leaves it out"),
    (
        {**PLAIN, "tres-per-task": "gres/gpu:1", "deadline": "2026-12-01T00:00:00"},
        {},
        "--deadline is not seen",
    ),
    ({**PLAIN, "ntasks-per-gpu": "1", "deadline": "2026-12-01T00:00:00"}, {}, "--deadline is not seen"),
    ({**GPU, "requeue": "requeue"}, {}, "--open-mode=append"),
]
SILENT: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({**GPU, "type": "srun", "comment": "gsub:retune=lower"}, {"GSUB_RETUNE": "lower"}),
    ({**GPU, "comment": "GSUB:OFF", "requeue": "requeue"}, {}),
    (PLAIN, {}),
    (GPU, {}),
    (GPU, {"GSUB": "off"}),
    ({"type": "sbatch", "gpus-per-node": "8"}, {}),
    ({**PLAIN, "export": "NONE", "deadline": "2026-12-01T00:00:00", "requeue": "requeue"}, {"GSUB": "off"}),
    ({**GPU, "export": "ALL"}, {"GSUB": "off"}),
    ({**GPU, "export": "HOME,GSUB"}, {"GSUB": "off"}),
    ({**GPU, "export": "HOME,GSUB=off"}, {"GSUB": "on"}),
    ({**GPU, "export": "ALL,GSUB=off", "deadline": "2026-12-01T00:00:00"}, {"GSUB": "off"}),
    ({**GPU, "comment": "gsub:off", "deadline": "2026-12-01T00:00:00"}, {}),
    ({**GPU, "requeue": "requeue", "open-mode": "a"}, {}),
    ({**GPU, "requeue": "no-requeue"}, {}),
    ({**GPU, "type": "srun"}, {"GSUB": "off", "SLURM_JOB_ID": "7"}),  # a step of a job that is decided
]


@pytest.mark.parametrize(("options", "env", "said"), SAYS)
def test_says_what_the_server_does_not_see(
    shim: Shim, options: dict[str, Any], env: dict[str, str], said: str
) -> None:
    [line] = advice(shim, options, env=env)
    assert said in line


@pytest.mark.parametrize(("options", "env"), SILENT)
def test_silent_otherwise(shim: Shim, options: dict[str, Any], env: dict[str, str]) -> None:
    assert advice(shim, options, env=env) == []


def test_says_it_once_for_a_heterogeneous_job(shim: Shim) -> None:
    component = {**GPU, "requeue": "requeue"}
    assert len(advice(shim, component, component, component)) == 1


def test_what_the_user_wrote_reaches_the_terminal_escaped(shim: Shim) -> None:
    [line] = advice(shim, {**GPU, "type": "salloc"}, env={"GSUB": "\x1b[2J%s\n" + "x" * 1000})
    assert line.isprintable()
    assert len(line) < 400


def test_options_of_no_kind_do_no_harm(shim: Shim) -> None:
    for value in (7, True, ["x"], {"a": 1}):
        odd = dict.fromkeys(["gpus", "gres", "export", "deadline", "requeue", "comment", "type"], value)
        assert advice(shim, odd, {**GPU, "type": value}, env={"GSUB": "off"}) is not None
