"""Backups: whole, readable by nobody else, and into either database."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.findings import Evidence
from profiler.resubmissions import Resubmission
from profiler.store import JobFacts, JobQuery, Store, StoreError, VerdictQuery, open_store, restore
from tests.unit.profiler.store.contents import contents
from tests.unit.profiler.store.records import (
    CLUSTER,
    T0,
    ended,
    event,
    found,
    judge_by_logs,
    series,
    started,
    usage,
)


@pytest.fixture
def filled(store: Store) -> Store:
    for number in range(1, 40):
        store.take(
            [
                started(number),
                usage(number, serial=2**62, final=True),
                series(number),
                ended(number),
                event(at=T0 + number),
            ],
            T0,
        )
    store.enrich(
        [JobFacts(cluster=CLUSTER, job_id=1, state="COMPLETED", name="ångström \u2603", final=True, ended=T0)]
    )
    store.take([found(2, evidence=(Evidence("a\nb\t\u2603\ud7ff"),)), found(3)], T0)
    assert len(judge_by_logs(store, T0 + 3700)) == 2
    store.take([found(3, serial=2)], T0)
    store.put_resubmissions([Resubmission(CLUSTER, 2, 0, "gpu_oom", "once", "planned", T0, "a \u2603")], T0)
    store.clear_node(CLUSTER, "n1", T0, "ada", "new GPU")
    store.put_decisions(
        CLUSTER, [{"kind": "decision", "decision": "d-1", "at": T0, "uid": 7, "enforced": True}]
    )
    return store


@pytest.mark.slow
def test_backup_and_restore_into_either(
    filled: Store, tmp_path: Path, request: pytest.FixtureRequest, other_url: Callable[[str], str]
) -> None:
    path = tmp_path / "backup"
    copied = filled.backup(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir() if "backup" in file.name] == ["backup"]
    assert copied.rows["job"] == 39 and copied.rows["gpu_usage"] == 78
    for kind in ("sqlite", "postgresql"):
        url = other_url(kind)
        assert restore(path, url) == copied
        again = open_store(url)
        assert contents(again) == contents(filled)
        # The restored store goes on: keys are not given twice, and what is told again is known
        again.take([started(1000), started(1)], T0)
        assert len(again.jobs(JobQuery(cluster=CLUSTER)).jobs) == 40
        assert again.verdicts(VerdictQuery(cluster=CLUSTER)) == filled.verdicts(VerdictQuery(cluster=CLUSTER))
        assert [case.job.job_id for case in again.unjudged(CLUSTER, 9, T0 + 1e6)] == [3]
        assert again.undecided(CLUSTER, 9, T0 + 1e6) == filled.undecided(CLUSTER, 9, T0 + 1e6)
        assert [one.job.job_id for one in again.undecided(CLUSTER, 9, T0 + 1e6)] == [2, 3]
        assert [one.resubmission.job_id for one in again.due_resubmissions(CLUSTER, 9, T0)] == [2]
        assert again.clearances(CLUSTER) == filled.clearances(CLUSTER)
        again.close()


def test_restore_refuses_a_filled_store(
    filled: Store, tmp_path: Path, other_url: Callable[[str], str]
) -> None:
    path = tmp_path / "backup"
    filled.backup(path)
    filled.take([started(77)], T0)
    before = contents(filled)
    url = filled.engines.url.render_as_string(hide_password=False)
    with pytest.raises(StoreError, match="not empty") as refused:
        restore(path, url)
    assert refused.value.kind == "not_empty"
    assert contents(filled) == before
    restore(path, url, replace=True)
    assert filled.job(CLUSTER, 77) is None and filled.job(CLUSTER, 1) is not None


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "empty", "no_end"])
def test_damaged_backup_changes_nothing(
    filled: Store, tmp_path: Path, other_url: Callable[[str], str], damage: str
) -> None:
    path = tmp_path / "backup"
    filled.backup(path)
    data = path.read_bytes()
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        middle = len(data) // 2 // 4096 * 4096
        data = (
            data[:middle]
            + bytes(byte ^ 0x5A for byte in data[middle : middle + 4096])
            + data[middle + 4096 :]
        )
    elif damage == "no_end" and data[:2] == b"\x1f\x8b":
        data = gzip.compress(b"".join(gzip.decompress(data).splitlines(keepends=True)[:-1]))
    else:
        data = b"something else" * 100 if damage == "other" else b""
    path.write_bytes(data)
    target = open_store(other_url("sqlite"))
    target.migrate()
    target.take([started(5)], T0)
    before = contents(target)
    with pytest.raises(StoreError) as refused:
        restore(path, str(target.engines.url), replace=True)
    assert refused.value.kind == "damaged"
    assert contents(target) == before
    target.close()


def test_backup_while_others_write(store: Store, tmp_path: Path) -> None:
    """A backup is of one moment: no job without its nodes."""
    import threading

    stop = threading.Event()
    written = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.take([started(number), usage(number), ended(number)], T0)
            written.append(number)

    store.take([started(1), usage(1), ended(1)], T0)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            rows = store.backup(tmp_path / "b").rows
            assert rows["job"] == rows["job_node"] == rows["gpu_usage"] / 2
    finally:
        stop.set()
        thread.join()


def test_no_room_for_a_backup(filled: Store, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    with pytest.raises(StoreError):
        filled.backup(small_disk / "backup")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
