"""`gsub explain`: what it says, and that it is what gsubd decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from gsub.argv import split
from gsub.cli import COMMANDS, help_text
from gsub.commands.explain import explain
from gsub.decide import components
from gsub.explanation import Explanation, decided
from gsub.explanation_view import MODES, facts, lines
from gsub.remedies import explain as explained
from gsub.sbatch import told
from gsub.sbatch_options import Table
from site_configs.site_model import Mode, Policy, Site
from slurm_plugins.client.values import Hosts, Node, NodeState, Partition, Tres
from slurm_plugins.decide.context import Context, SlurmFacts
from slurm_plugins.decide.decision import Change, Note, Proposal
from slurm_plugins.decide.inventory import build
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import Stage

# --- what it says ---------------------------------------------------------------------------------------------------

NODES = [
    Node(name=f"n{i}", state=NodeState.IDLE, cpus=64, memory=512 << 30, gres=Tres((("gres/gpu", 8),)))
    for i in range(1, 5)
]
GPU = Partition(name="gpu", state="UP", is_default=True, nodes=Hosts("n[1-4]"))


class Two(Stage):
    """Two nodes, and a word."""

    name = "two"

    def decide(self, request: Request, context: Context) -> Proposal:
        """Two changes that belong together, one of them without words."""
        if request.job.num_tasks == 999:
            return Proposal(reject="gsub: 999 tasks\nbecause\nask for fewer")
        if request.job.num_tasks == 998:
            raise ZeroDivisionError("a bug\x1b[31m")
        note = Note(
            "worth a wait",
            inputs={"slowdown": 1.15, "slowdown_source": "site", "run_time": 7200, "runs": None, "wait": 300},
        )
        changes = (Change("min_nodes", 1, 2, "it fits\x1b]0;x\x07"), Change("max_nodes", None, 2))
        return Proposal(changes, (note, Note("enough", inputs={"memory_per_gpu": 64000, "share": 64000})))


def explained_as(
    *words: str, mode: Mode = "observe", script: str = "#!/bin/sh\n", stages: Any = None
) -> Explanation:
    site = Site(cluster="c", policy=Policy(mode=mode))
    context = Context(site, build(NODES, [GPU], site), SlurmFacts(release=(24, 11)))
    line = split([*words, "train.sh"], Table.of_all())
    found = components(line, script.encode(), {}, (24, 11), uid=1000)
    parts = decided(found, context, stages or [Two()])
    return Explanation(line, "train.sh", parts, context, "/etc/gsub/site.toml")


def text(explanation: Explanation) -> str:
    return "\n".join(lines(explanation))


def test_each_change_with_before_after_and_reason():
    said = text(explained_as("-G", "16", script="#!/bin/sh\n#SBATCH -t 5\n"))
    assert said.startswith("Nothing was submitted.\n")
    assert "cluster    c, Slurm 24.11, as it is now" in said
    assert "--gpus=16 (command line), --time=5 (script line 2)" in said
    head, row = (
        line.split(maxsplit=2) for line in said.splitlines() if "because" in line or "it fits" in line
    )
    assert row[:2] == ["--nodes=2", "--nodes=1"] and row[2] == "it fits (two)"
    assert head[-1].endswith("because")
    assert "--nodes=1-2" not in said  # a change without words of its own is for the machine


@pytest.mark.parametrize(
    ("mode", "verb"), [("observe", "gsub would set"), ("advise", "gsub would set"), ("enforce", "gsub sets")]
)
def test_the_mode_and_what_it_means(mode, verb):
    said = text(explained_as("-G", "16", mode=mode))
    assert f"{mode}: {MODES[mode]}" in said and verb in said


def test_notes_with_the_numbers_and_their_sources():
    said = text(explained_as("-G", "16"))
    assert "worth a wait (two)" in said
    assert "slowdown 1.15 (site), run_time 2 h, wait 5 min" in said
    assert "memory_per_gpu 62.5G, share 62.5G" in said
    assert "runs" not in said


def test_a_refusal_in_each_mode():
    observed = explained_as("-G", "16", "-n", "999")
    assert "would refuse it: 999 tasks" in text(observed) and "gsub: 999" not in text(observed)
    refused = explained_as("-G", "16", "-n", "999", mode="enforce")
    assert "refuses it: 999 tasks" in text(refused) and "ask for fewer" in text(refused)
    assert refused.refused and facts(refused)["exit_code"] == 1


def test_a_stage_that_fails_is_told():
    said = text(explained_as("-G", "16", "-n", "998"))
    assert "the stage two failed: ZeroDivisionError: a bug" in said and "finds nothing to change" in said


def test_nothing_of_a_user_or_a_site_steers_a_terminal():
    said = text(explained_as("-G", "16", "--comment=\x1b[31mred\x07", "-n", "998")) + text(
        explained_as("-G", "1")
    )
    assert not set(said) & {"\x1b", "\x07"}


def test_opting_out_is_said_and_how_it_is_done():
    assert "gsub:off" in text(explained_as("-G", "16"))
    left = explained_as("-G", "16", "--comment=gsub:off")
    assert "leaves it as it is: the job says so" in text(left)
    assert facts(left)["components"][0]["opted_out"] is True


def test_a_job_without_gpus_is_left_alone():
    explanation = explained_as("-n", "4")
    assert "leaves it as it is: it asks for no GPU" in text(explanation)
    assert facts(explanation)["components"][0]["looked_at"] is False


def test_each_component_of_a_hetjob():
    explanation = explained_as("-G", "16", ":", "-n", "4")
    said = text(explanation)
    assert (
        said.index("Component 0") < said.index("it fits") < said.index("Component 1") < said.index("no GPU")
    )
    assert len(facts(explanation)["components"]) == 2


def test_json_has_all_of_it():
    found = json.loads(json.dumps(facts(explained_as("-G", "16", mode="enforce"))))
    [part] = found["components"]
    assert part["asked_for"] == {"gpus": {"value": "16", "source": "command line"}}
    assert part["job"]["tres_per_job"] == "gres/gpu:16"
    assert [(one["field"], one["before"], one["after"], one["stage"]) for one in part["changes"]] == [
        ("min_nodes", 1, 2, "two"),
        ("max_nodes", None, 2, "two"),
    ]  # and not the id that a decision leaves in AdminComment
    assert "GSUB_DECISION" not in part["set_env"]
    assert part["notes"][0]["inputs"]["slowdown_source"] == "site"
    assert part["mode"] == "enforce" and part["enforced"] is True and found["exit_code"] == 0


def test_it_is_a_command():
    assert "explain" in COMMANDS and "explain" in help_text()
    for word in ("--help", "-h", "--usage"):
        said = CliRunner().invoke(explain, [word])
        assert said.exit_code == 0 and "Nothing is submitted" in said.output


# --- what sbatch hands on of gsub's words ---------------------------------------------------------------------------


def test_our_words_come_without_sbatchs_name():
    said = "sbatch: gsub set --nodes=2: x\nsbatch: gsub: waits\nsbatch: gsubstitute\nsbatch: lua: y\n"
    assert told(said).splitlines() == [
        "gsub set --nodes=2: x",
        "gsub: waits",
        "sbatch: gsubstitute",
        "sbatch: lua: y",
    ]


def test_our_refusal_is_one_error():
    error = explained(
        "sbatch: error: gsub: partition gpu has 16 GPUs, and the job asks for 999.\n"
        "sbatch: error: Ask for at most 16.\n"
        "sbatch: error: Batch job submission failed: Unspecified error\n"
    )
    assert error.lines() == [
        "gsub: partition gpu has 16 GPUs, and the job asks for 999.",
        "  try: Ask for at most 16.",
    ]
    assert error.exit_code == 1
    assert explained("sbatch: error: gsub: no\nsbatch: error: Batch job submission failed: x\n").lines() == [
        "gsub: no"
    ]


# --- on a real Slurm ------------------------------------------------------------------------------------------------


