"""/metrics as Prometheus reads it, /healthz, and a server that nobody can hold up."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from slurm_plugins.decide.decision import Change, Decision, StageFailure
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.service import http
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.metrics import Counter, Gauge, Histogram, Registry
from tests.unit.slurm_plugins.service.serving import PATIENCE, FakeLookout, Serving, reply, serving

_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*)\})? '
    r"([0-9.e+-]+|\+Inf)"
)


def parsed(text: str) -> dict[str, float]:
    """Samples of a text in Prometheus' format 0.0.4; fails on anything else, and on a sample without its header."""
    samples: dict[str, float] = {}
    known: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in known and kind in {"counter", "gauge", "histogram"}
            known[name] = kind
            continue
        found = _SAMPLE.fullmatch(line)
        assert found, line
        family = re.sub(r"_(bucket|sum|count)$", "", found[1])
        assert known.get(found[1]) or known.get(family) == "histogram", line
        key = found[1] + (f"{{{found[2]}}}" if found[2] else "")
        assert key not in samples
        samples[key] = float(found[3])
    return samples


def test_what_was_decided_is_counted_by_mode_and_stage() -> None:
    counts = Counts()
    request = Request(id=1, uid=0, job=Job())
    changes = (Change("min_nodes", None, 2, "why", "gang"), Change("max_nodes", None, 2, "", "gang"))
    counts.decided(
        request, Decision("d-1", "enforce", (*changes, Change("admin_comment", None, "x"))), 0.0004
    )
    counts.decided(request, Decision("d-2", "observe", reject="never"), 0.2)
    counts.decided(request, Decision("d-3", "observe", failures=(StageFailure("mine", "E"),)), 0.004)
    counts.decided(request, Decision("d-4", "advise", opted_out=True), 0.004)
    samples = parsed(counts.registry.text())
    assert samples['gsub_decisions_total{mode="observe"}'] == 2
    assert samples['gsub_decisions_total{mode="enforce"}'] == 1
    assert samples['gsub_edits_total{stage="gang",mode="enforce"}'] == 2
    assert samples['gsub_rejects_total{mode="observe"}'] == 1
    assert samples['gsub_stage_failures_total{stage="mine"}'] == 1
    assert samples["gsub_opted_out_total"] == 1
    assert samples['gsub_decision_seconds_bucket{le="0.0005"}'] == 1
    assert samples['gsub_decision_seconds_bucket{le="0.005"}'] == 3
    assert samples['gsub_decision_seconds_bucket{le="+Inf"}'] == samples["gsub_decision_seconds_count"] == 4
    assert samples["gsub_decision_seconds_sum"] == pytest.approx(0.2084)


def test_the_shim_tells_totals_and_starts_from_nothing_when_it_is_loaded_anew() -> None:
    counts = Counts()
    for totals in ({"late": 2}, {"late": 2, "opened": 1}, {"late": 5}, {"late": 1}, {"evil": 7, "late": -3}):
        counts.told_by_shim(totals)
    samples = parsed(counts.registry.text())
    assert samples['gsub_shim_events_total{event="late"}'] == 6
    assert samples['gsub_shim_events_total{event="opened"}'] == 1
    assert not any("evil" in name for name in samples)


def test_labels_are_escaped_and_cannot_grow_without_end() -> None:
    counter = Counter("a_total", "A.", ["why"])
    counter.add('"\\\n')
    for number in range(2000):
        counter.add(str(number))
    registry = Registry()
    registry._all.append(counter)
    samples = parsed(registry.text())
    assert samples['a_total{why="\\"\\\\\\n"}'] == 1
    assert len(samples) <= 1001 and sum(samples.values()) == 2001


def test_a_gauge_that_is_not_known_is_left_out() -> None:
    assert list(Gauge("a", "A.", lambda: None).lines()) == []
    assert list(Gauge("a", "A.", lambda: 1.5).lines())[-1] == "a 1.5"
    assert list(Histogram("h", "H.", [1]).lines())[-1] == "h_count 0"


def test_metrics_over_http(service: Serving) -> None:
    peer = service.peer()
    for _ in range(3):
        peer.ask(shim={"opened": 1})
    status, text = service.get("/metrics")
    samples = parsed(text)
    assert status == 200
    assert samples['gsub_decisions_total{mode="observe"}'] == 3
    assert samples["gsub_decision_seconds_count"] == 3
    assert samples['gsub_shim_events_total{event="opened"}'] == 1
    assert samples['gsub_polls_total{result="ok"}'] >= 1
    assert 0 <= samples["gsub_inventory_age_seconds"] < PATIENCE
    assert (samples["gsub_site_file_ok"], samples["gsub_connections"]) == (1, 1)
    assert samples["gsub_site_file_changed_seconds"] == service.site.stat().st_mtime


def test_health_before_and_after_the_first_look(tmp_path: Path) -> None:
    lookout = FakeLookout()
    with serving(tmp_path, lookout=lookout) as service:
        assert service.get("/healthz")[0] == 200
        service.daemon.polling.answered = None
        assert service.get("/healthz")[0] == 503
        assert "gsub_inventory_age_seconds" not in service.get("/metrics")[1]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET http://evil/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/3\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: b\x00c\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\n\n", 400),
        (b"GET /" + b"a" * 20_000, 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 2000, 431),
    ],
    ids=lambda value: (
        value[:40].decode("latin-1").encode("unicode_escape").decode() if isinstance(value, bytes) else ""
    ),
)
def test_requests(service: Serving, sent: bytes, status: int) -> None:
    with socket.create_connection(service.address, timeout=PATIENCE) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        found, body = reply(connection)
    assert found == status
    assert bool(body) != sent.startswith(b"HEAD")


@pytest.mark.case("A4")
def test_slow_and_many_readers_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_SECONDS", 5.0)
    monkeypatch.setattr(http, "_CONNECTIONS", 4)
    with serving(tmp_path) as service:
        slow = [socket.create_connection(service.address, timeout=PATIENCE) for _ in range(4)]
        for connection in slow:
            connection.sendall(b"GET /met")
        assert service.get("/metrics")[0] == 200, "one more ends the oldest"
        assert slow[0].recv(10) == b""
        assert service.peer().ask()["mode"] == "observe"
        assert all(connection.recv(10) == b"" for connection in slow)  # their time is over


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_who_reads_no_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else everybody on the host could take gsubd's descriptors, one after the other."""
    monkeypatch.setattr(http, "_SECONDS", 0.3)
    whole = 64 << 20  # more than the kernel keeps for it
    with serving(tmp_path) as service:
        monkeypatch.setattr(service.daemon.counts.registry, "text", lambda: "x" * whole)
        before = _descriptors()
        with socket.create_connection(service.address, timeout=PATIENCE) as deaf:
            deaf.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert deaf.recv(1)
            service.wait(lambda: _descriptors() <= before + 1)
        assert service.peer().ask()["mode"] == "observe"
