"""What the daemons say in their log: on one line, harmless, and each trouble once."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator

import pytest

from profiler.arguments import seconds
from profiler.logs import AGAIN, Troubles, log_to_stderr

LOG = logging.getLogger("test_logs")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger without the handlers of others, put back afterwards."""
    found = logging.getLogger()
    handlers, level = found.handlers[:], found.level
    found.handlers.clear()
    yield found
    found.handlers[:] = handlers
    found.setLevel(level)


@pytest.mark.parametrize("under_systemd", [False, True])
def test_a_line_is_one_and_harmless(
    root: logging.Logger,
    under_systemd: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if under_systemd:
        monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log_to_stderr("gsubd", verbose=False)
    LOG.info("began")
    LOG.debug("untold")
    try:
        raise ValueError("a\nb\x1b[31m")
    except ValueError:
        LOG.exception("two\nlines \x1b]0;x\x07")
    lines = [line for line in capsys.readouterr().err.splitlines() if "gsubd" in line or "Value" in line]
    start = ("<6>", "<3>") if under_systemd else ("", "")
    assert lines[0] == f"{start[0]}gsubd: began"
    assert lines[1] == f"{start[1]}gsubd: error: two lines ?]0;x?"
    assert lines[-1].startswith(f"{start[1]}  ") and all(line.isprintable() for line in lines)


def test_a_trouble_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    troubles = Troubles(LOG, clock=lambda: now[0])
    troubles.say("no answer", "")
    for now[0] in range(5):
        troubles.say("no answer", "refused\x1b[31m")
        troubles.say("another", "full")
    troubles.say("no answer", "")
    troubles.say("no answer", "")
    assert caplog.messages == ["no answer: refused?[31m", "another: full", "no longer: no answer"]
    troubles.say("no answer", "refused")
    assert caplog.messages[3:] == ["no answer: refused"]


def test_another_cause_of_the_same_trouble_is_told_but_not_at_each_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    troubles = Troubles(LOG, clock=lambda: now[0])
    for look in range(int(2 * AGAIN / 30)):
        now[0] = 30.0 * look
        troubles.say("no answer", f"timed out after {look} s")
    assert caplog.messages == ["no answer: timed out after 0 s", "no answer: timed out after 20 s"]
    for _ in range(100):
        now[0] += 30.0
        troubles.say("no answer", "refused")
    assert caplog.messages[2:] == ["no answer: refused"]


@pytest.mark.parametrize("text", ["", "x", "4.9", "61", "nan", "inf", "-5"])
def test_seconds_out_of_range_are_refused_with_the_range(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="want 5 to 60 seconds"):
        seconds(5, 60)(text)
    assert seconds(5, 60)("7.5") == 7.5
