"""How often the classifier is right: `python -m tests.unit.prolog_epilog.failures.accuracy FOLDER [--json]`.

FOLDER has `labels.jsonl` (an object a line: file, reason, and where known also_acceptable, misleading, slurm_state) and
`logs/`. A file is classified alone, without Slurm's word; `--state` gives that along where the labels have it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.findings import Finding
from prolog_epilog.failures.classify import Ended, classify
from prolog_epilog.failures.text import LogText


@dataclass(frozen=True, slots=True)
class Labelled:
    """A log and the reason that a person gave it."""

    path: Path
    reason: str
    acceptable: frozenset[str]
    misleading: bool = False
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A labelled log and what was found in it."""

    log: Labelled
    finding: Finding

    @property
    def right(self) -> bool:
        """Whether it is the label, or one that the label also accepts; of a good end it may say that it knows none."""
        if self.log.reason == "none" and self.finding.reason == "no_signature":
            return True
        return self.finding.reason == self.log.reason or self.finding.reason in self.log.acceptable

    @property
    def exact(self) -> bool:
        """Whether it is the label itself."""
        return self.finding.reason == self.log.reason


def labelled(folder: Path) -> list[Labelled]:
    """The labelled logs of a folder."""
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines() if line.strip()]
    return [
        Labelled(
            folder / "logs" / Path(row["file"]).name,
            row["reason"],
            frozenset(row.get("also_acceptable", ())),
            bool(row.get("misleading")),
            row.get("slurm_state"),
        )
        for row in rows
    ]


def answers(logs: Sequence[Labelled], *, states: bool = False) -> list[Answer]:
    """What the classifier says of each."""
    found = []
    for log in logs:
        text = LogText.of(log.path.name, log.path.read_bytes())
        found.append(Answer(log, classify([text], Ended(log.state if states else None))))
    return found


def accuracy(found: Sequence[Answer], *, exact: bool = False) -> float:
    """The share that is right, 0 of none."""
    return sum(answer.exact if exact else answer.right for answer in found) / max(len(found), 1)


def macro_f1(found: Sequence[Answer]) -> float:
    """The mean over the labels' reasons of F1; an accepted other answer counts as the label."""
    pairs = [
        (answer.log.reason, answer.log.reason if answer.right else answer.finding.reason) for answer in found
    ]
    scores = []
    for reason in {true for true, _ in pairs}:
        hit = sum(true == said == reason for true, said in pairs)
        told = sum(said == reason for _, said in pairs)
        real = sum(true == reason for true, _ in pairs)
        scores.append(2 * hit / (told + real) if told + real else 0.0)
    return sum(scores) / max(len(scores), 1)


def recalls(found: Sequence[Answer]) -> dict[str, tuple[int, int]]:
    """Reason to how many of its logs were right, and how many there are."""
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for answer in found:
        right, all_ = counts[answer.log.reason]
        counts[answer.log.reason] = (right + answer.right, all_ + 1)
    return dict(sorted(counts.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures, the confusions and the misses."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.prolog_epilog.failures.accuracy")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="one object")
    parser.add_argument(
        "--state", action="store_true", help="give Slurm's state along where the labels have it"
    )
    options = parser.parse_args(arguments)
    found = answers(labelled(options.folder), states=options.state)
    misled = [answer for answer in found if answer.log.misleading]
    figures = {
        "logs": len(found),
        "accuracy": round(accuracy(found), 4),
        "exact": round(accuracy(found, exact=True), 4),
        "macro_f1": round(macro_f1(found), 4),
        "misleading": len(misled),
        "accuracy_misleading": round(accuracy(misled), 4),
        "confidence_right": _mean([answer.finding.confidence for answer in found if answer.right]),
        "confidence_wrong": _mean([answer.finding.confidence for answer in found if not answer.right]),
    }
    confused = Counter(
        (answer.log.reason, answer.finding.reason)
        for answer in found
        if answer.log.reason != answer.finding.reason
    )
    if options.json:
        print(
            json.dumps(
                {
                    **figures,
                    "reasons": recalls(found),
                    "confusion": [[*pair, count] for pair, count in confused.most_common()],
                    "misses": [
                        {
                            "file": answer.log.path.name,
                            "label": answer.log.reason,
                            "said": answer.finding.reason,
                            "signature": answer.finding.signature,
                            "line": answer.finding.evidence[0].line if answer.finding.evidence else None,
                        }
                        for answer in found
                        if not answer.right
                    ],
                }
            )
        )
        return 0
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print("\nreason: right of all")
    for reason, (right, all_) in recalls(found).items():
        print(f"  {reason:24} {right:3} / {all_}")
    print("\nlabel -> said: times")
    for (label, said), count in confused.most_common():
        print(f"  {label:24} -> {said:24} {count}")
    print("\nmisses")
    for answer in found:
        if not answer.right:
            finding = answer.finding
            line = finding.evidence[0] if finding.evidence else None
            said = f"line {line.line}: {line.text[:110]}" if line else "no evidence"
            print(
                f"  {answer.log.path.name} {answer.log.reason} -> {finding.reason} [{finding.signature}] {said}"
            )
    return 0


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())
