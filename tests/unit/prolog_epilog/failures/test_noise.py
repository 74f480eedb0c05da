"""The same failures in logs as launchers, terminals and other ranks leave them: nothing of that may change a reason."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.text import LogText
from tests.paths import DATA
from tests.unit.prolog_epilog.failures.accuracy import Labelled, labelled

pytestmark = pytest.mark.slow

CORPUS = DATA / "logs"


def _work(chance: random.Random) -> str:
    """A line of work, of whichever rank or loop: its numbers say nothing."""
    return chance.choice(
        [
            "UserWarning: this setting is slower than the fused variant; consider enabling it",
            f"Epoch 3: {chance.randint(1, 99)}%|###  | {chance.randint(1, 500)}/900 [40:10<50:24]",
            f"step {chance.randint(100, 9000)} | loss {chance.random() * 8:.4f} | {chance.randint(1000, 40000)} tok/s",
            f"gpu mem {chance.random() * 80:.1f} GB, data wait {chance.random() * 9:.1f} ms",
            f"INFO loader: restored 0 skipped samples, {chance.randint(1, 64)} workers",
            f"val/acc {chance.random():.4f}  val/loss {chance.random() * 5:.4f}",
        ]
    )


def _among_others(text: str) -> str:
    chance = random.Random(text)
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        if chance.random() < 0.4:
            lines.append(_work(chance))
    return "\n".join(lines + [_work(chance) for _ in range(20)]) + "\n"


def _each(prefix: str, text: str, suffix: str = "") -> str:
    return "".join(f"{prefix}{line}{suffix}\n" for line in text.splitlines())


FORMS: dict[str, Callable[[str], bytes]] = {
    "as it is": str.encode,
    "labelled by srun": lambda text: _each("0: ", text).encode(),
    "labelled by Ray": lambda text: _each("(main pid=77, ip=10.0.0.3) ", text).encode(),
    "of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "coloured": lambda text: _each("\x1b[31m", text, "\x1b[0m").encode(),
    "among other ranks' work": lambda text: _among_others(text).encode(),
}


def _right(log: Labelled, form: Callable[[str], bytes]) -> bool:
    text = form(log.path.read_text(errors="replace"))
    reason = classify([LogText.of(log.path.name, text)]).reason
    return reason == log.reason or reason in log.acceptable


@pytest.mark.parametrize("form", FORMS)
def test_its_form_does_not_change_what_a_log_says(form):
    logs = labelled(CORPUS)
    changed = [log.path.name for log in logs if not _right(log, FORMS[form]) and _right(log, str.encode)]
    assert len(changed) <= len(logs) * 0.01, changed
