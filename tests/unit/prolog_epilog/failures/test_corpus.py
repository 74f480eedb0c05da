"""The classifier on logs that no signature was written from: see corpus/README.md."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS
from prolog_epilog.failures.text import LogText
from tests.paths import DATA
from tests.unit.prolog_epilog.failures.accuracy import Answer, accuracy, answers, labelled, recalls

CORPUS = DATA / "logs"
LOGS = labelled(CORPUS)
GOAL = 0.9
SLOWEST_S = 1.0
"""For one log of some KiB, on a busy machine; the bench says what it is on an idle one."""


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """Each log by itself, as `gsub why --log` has it."""
    return answers(LOGS)


@pytest.fixture(scope="module")
def with_state() -> list[Answer]:
    """Each with Slurm's word, as a node's child has it."""
    return answers(LOGS, states=True)


def _misses(found: list[Answer]) -> str:
    return "\n".join(
        f"{each.log.path.name}: {each.finding.reason} ({each.finding.signature}), not {each.log.reason}"
        for each in found
        if not each.right
    )


def test_every_reason_is_there_at_least_twice() -> None:
    counts = Counter(log.reason for log in LOGS)
    assert {*counts} == {*REASONS, NONE}
    assert min(counts.values()) >= 2
    assert counts[NONE] >= 8
    assert counts[NO_SIGNATURE] >= 4
    assert len(LOGS) >= 110
    assert 2 * sum(log.misleading for log in LOGS) >= len(LOGS)


def test_labels_and_logs_belong_together() -> None:
    assert sorted(log.path.name for log in LOGS) == sorted(path.name for path in (CORPUS / "logs").iterdir())
    for line in (CORPUS / "labels.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert {*row["also_acceptable"]} <= {*REASONS, NONE} - {row["reason"]}
        assert row["source"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "with_state"])
def test_nine_of_ten_are_right(how: str, request: pytest.FixtureRequest) -> None:
    found: list[Answer] = request.getfixturevalue(how)
    assert accuracy(found) >= GOAL, _misses(found)
    misled = [each for each in found if each.log.misleading]
    assert accuracy(misled) >= GOAL, _misses(misled)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "with_state"])
def test_no_reason_is_never_found(how: str, request: pytest.FixtureRequest) -> None:
    found: list[Answer] = request.getfixturevalue(how)
    assert not [reason for reason, (right, _) in recalls(found).items() if not right], _misses(found)


def test_slurms_state_tells_a_requeue_from_a_preemption(with_state: list[Answer]) -> None:
    found = [each for each in with_state if each.log.state in ("REQUEUED", "PREEMPTED")]
    assert {each.log.reason for each in found} >= {"requeued", "preempted"}
    assert not [each for each in found if not each.exact], _misses(found)


@pytest.mark.parametrize("how", ["alone", "with_state"])
def test_a_run_that_ended_well_has_no_reason(how: str, request: pytest.FixtureRequest) -> None:
    found: list[Answer] = request.getfixturevalue(how)
    well = [each for each in found if each.log.reason == NONE]
    assert not _misses(well)


@pytest.mark.parametrize("how", ["alone", "with_state"])
def test_what_decided_is_a_line_of_the_log(how: str, request: pytest.FixtureRequest) -> None:
    found: list[Answer] = request.getfixturevalue(how)
    for each in found:
        if each.finding.reason in (NONE, NO_SIGNATURE) or each.finding.tier == "none":
            continue
        evidence = each.finding.evidence[0]
        if evidence.what != "log":
            continue
        lines = each.log.path.read_bytes().count(b"\n")
        assert evidence.file == each.log.path.name
        assert evidence.line is not None
        assert 1 <= evidence.line <= lines
        assert evidence.text.strip()


def _before(label: bytes) -> Callable[[bytes], bytes]:
    return lambda log: b"\n".join(label + line for line in log.split(b"\n"))


WRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "srun -l": _before(b"3: "),
    "torch": _before(b"[rank3]: "),
    "torchrun --tee": _before(b"[default3]:"),
    "mpirun --tag-output": _before(b"[1,3]<stderr>:"),
    "Ray": _before(b"(RayTrainWorker pid=123, ip=10.0.0.3) "),
    "pdsh": _before(b"gpu17: "),
    "logging": _before(b"[2026-08-14 06:19:18,579] "),
    "kubectl --timestamps": _before(b"2026-08-14T06:19:18.579Z "),
    "vLLM": _before(b"(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] "),
    "Windows": lambda log: log.replace(b"\n", b"\r\n"),
    "UTF-16": lambda log: log.decode().encode("utf-16"),
    "colours": lambda log: b"\n".join(b"\x1b[31m" + line + b"\x1b[0m" for line in log.split(b"\n")),
    "a long run": lambda log: b"".join(b"step %d loss 2.%03d\n" % (at, 999 - at) for at in range(500)) + log,
    "wrapped": lambda log: b"\n".join(
        line[at : at + 100] for line in log.split(b"\n") for at in range(0, max(1, len(line)), 100)
    ),
}
"""The same log as it comes by another way: what it means does not change."""


@pytest.mark.parametrize("way", WRITTEN)
def test_how_it_was_written_changes_nothing(way: str, alone: list[Answer]) -> None:
    read = [each for each in alone if each.right and not each.log.path.read_bytes().startswith(b"\xff\xfe")]
    some = read[::4]  # all of them took two minutes
    changed = []
    for each in some:
        text = LogText.of(each.log.path.name, WRITTEN[way](each.log.path.read_bytes()))
        said = classify([text]).reason
        if said != each.finding.reason and said not in each.log.acceptable:
            changed.append(f"{each.log.path.name}: {said}, was {each.finding.reason}")
    assert len(changed) <= 0.06 * len(some), "\n".join(changed)


@pytest.mark.slow
def test_none_takes_long(alone: list[Answer]) -> None:  # after a first one, which loads the signatures
    for each in alone:
        text = LogText.of(each.log.path.name, each.log.path.read_bytes())
        since = time.perf_counter()
        classify([text])
        assert time.perf_counter() - since < SLOWEST_S, each.log.path.name
