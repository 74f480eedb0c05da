"""The example job: how its ranks meet, what they compute, what they say when one is lost; a run on Slurm."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import REPOSITORY
from tests.waiting import wait_until

EXAMPLE = REPOSITORY / "examples" / "digits"


@cache
def of_the_example(name: str) -> Any:
    """A module of the example; no package of ours: its name only holds beside train.sh."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLE))


ranks = of_the_example("ranks")
"""`train` is imported by those tests that need it: it brings scikit-learn, which takes seconds."""

FINAL = re.compile(r"(?m)^final accuracy (0\.\d{4}) on 360 held-out digits, (\d+) ranks? on (\d+) nodes?$")
EPOCH = re.compile(r"(?m)^epoch (\d+)/(\d+) loss (\d+\.\d{4}) accuracy (\d\.\d{3}) \d+ samples/s$")


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    return tmp_path / "meeting.json"


def together(size: int, meeting: Path, work: Callable[[Any], Any], timeout: float = 10.0) -> list[Any]:
    """`work(star)` on every rank of a star, each in a thread; the results (or exceptions) by rank."""

    def rank(number: int) -> Any:
        try:
            star = ranks.Star(number, size, meeting, timeout)
        except ranks.JobError as error:
            return error
        try:
            return work(star)
        except ranks.JobError as error:
            return error
        finally:
            star.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


def wait_for(path: Path) -> dict[str, Any]:
    wait_until(path.exists, 10, str(path), pause=0.01)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture
def rank0(meeting: Path) -> Iterator[Any]:
    """Rank 0 of two, waiting in a thread for rank 1: its `address`, its `token`; `result()` is its star."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(ranks.Star, 0, 2, meeting, 5.0)
    told = wait_for(meeting)

    class Rank0:
        address = ("127.0.0.1", told["port"])
        token = bytes.fromhex(told["token"])
        result = staticmethod(future.result)

    yield Rank0
    pool.shutdown()
    if future.exception() is None:
        future.result().close()


# --- who am I -----------------------------------------------------------------------------------------------

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
    "SLURMD_NODENAME": "n2",
    "CUDA_VISIBLE_DEVICES": "4,6",
}


def test_a_rank_reads_its_place_from_slurm() -> None:
    place = ranks.Place.from_slurm(STEP)
    assert (place.rank, place.size, place.local_rank, place.node, place.nodes, place.gpu) == (
        3,
        4,
        1,
        "n2",
        2,
        "6",
    )


@pytest.mark.parametrize(
    ("change", "gpu"),
    [
        ({}, "6"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "-"),
        ({"SLURM_LOCALID": "0"}, "4"),
    ],
)
def test_the_local_rank_picks_the_gpu(change: dict[str, str], gpu: str) -> None:
    assert ranks.Place.from_slurm(STEP | change).gpu == gpu


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}])
def test_outside_srun_there_is_one_rank(env: dict[str, str]) -> None:
    place = ranks.Place.from_slurm(env)
    assert (place.rank, place.size, place.nodes, place.gpu) == (0, 1, 1, "-")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID='x' is not a number: start the ranks with srun"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID='-1' is not a number"),
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID=4 cannot be among 4 ranks: start the ranks with srun"),
        ({"SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS='' is not a number"),
        ({"SLURM_STEP_NUM_TASKS": "0"}, "SLURM_PROCID=3 cannot be among 0 ranks"),
        ({"SLURM_LOCALID": "one"}, "SLURM_LOCALID='one' is not a number"),
    ],
)
def test_a_broken_place_is_said(change: dict[str, str], message: str) -> None:
    with pytest.raises(ranks.StartError) as caught:
        ranks.Place.from_slurm(STEP | change)
    assert str(caught.value).startswith(message)


def test_each_run_meets_in_a_file_of_its_own() -> None:
    runs = [{}, {"SLURM_JOB_ID": "13"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}]
    assert len({ranks.Place.from_slurm(STEP | run).meeting for run in runs}) == len(runs)


# --- adding up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (200_000,)])
def test_all_ranks_get_the_same_sum(size: int, shape: tuple[int, ...], meeting: Path) -> None:
    parts = np.random.default_rng(size).normal(size=(size, *shape))
    results = together(size, meeting, lambda star: [star.sum(parts[star.rank] * k) for k in (1, 2)])
    for once, twice in results:
        assert once.shape == shape
        np.testing.assert_allclose(once, parts.sum(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(once, results[0][0])
        np.testing.assert_array_equal(twice, results[0][1])


def test_ranks_that_are_out_of_step_are_told_so(meeting: Path) -> None:
    error, _ = together(2, meeting, lambda star: star.sum(np.zeros(3 + star.rank)))
    assert str(error) == "rank 1 is out of step: at sum 1 of 32 bytes, this rank at sum 1 of 24 bytes"


def test_a_lost_rank_is_named_to_rank_0_and_rank_0_to_the_others(meeting: Path) -> None:
    def work(star: Any) -> Any:
        star.sum([1.0])
        if star.rank != 2:
            star.sum([1.0])

    lost2, lost0, left = together(3, meeting, work)
    assert re.fullmatch(r"lost rank 2 \(.+\): the cause is on that rank", str(lost2))
    assert re.fullmatch(r"lost rank 0 \(.+\): the cause is on that rank", str(lost0))
    assert left is None


def test_a_silent_rank_is_given_up_after_the_timeout(meeting: Path) -> None:
    given_up = threading.Event()

    def work(star: Any) -> Any:
        if star.rank == 1:
            return given_up.wait(10)
        began = time.monotonic()
        try:
            return star.sum([1.0])
        finally:
            assert time.monotonic() - began < 2
            given_up.set()

    error, waited = together(2, meeting, work, timeout=0.3)
    assert str(error) == "lost rank 1 (nothing came for 0.3 s): the cause is on that rank"
    assert waited


# --- meeting ------------------------------------------------------------------------------------------------


def test_the_meeting_file_is_private_and_goes_when_all_have_come(meeting: Path, rank0: Any) -> None:
    assert stat.S_IMODE(meeting.stat().st_mode) == 0o600
    ranks.Star(1, 2, meeting, 5.0).close()
    assert rank0.result().peers.keys() == {1}
    assert list(meeting.parent.iterdir()) == []


def stranger_silent(peer: socket.socket, token: bytes) -> None:
    peer.shutdown(socket.SHUT_WR)


def stranger_garbage(peer: socket.socket, token: bytes) -> None:
    peer.sendall(b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n" + bytes(40))


def stranger_wrong_token(peer: socket.socket, token: bytes) -> None:
    _answer(peer, 1, bytes(32))


def stranger_reflects(peer: socket.socket, token: bytes) -> None:
    """Sends rank 0's own kind of proof back, made for a nonce of its choice."""
    peer.sendall(struct.pack("<I16s", 1, bytes(16)))
    peer.sendall(ranks.receive(peer, 48)[16:])


def stranger_is_rank_0(peer: socket.socket, token: bytes) -> None:
    _answer(peer, 0, token)


def stranger_is_rank_2(peer: socket.socket, token: bytes) -> None:
    _answer(peer, 2, token)


def _answer(peer: socket.socket, rank: int, token: bytes) -> None:
    peer.sendall(struct.pack("<I16s", rank, bytes(16)))
    peer.sendall(ranks.proof(token, rank, ranks.receive(peer, 48)[:16]))


@pytest.mark.parametrize(
    "stranger",
    [
        stranger_silent,
        stranger_garbage,
        stranger_wrong_token,
        stranger_reflects,
        stranger_is_rank_0,
        stranger_is_rank_2,
    ],
)
def test_a_stranger_is_turned_away_and_the_ranks_still_meet(stranger: Any, meeting: Path, rank0: Any) -> None:
    with socket.create_connection(rank0.address, timeout=5) as peer:
        stranger(peer, rank0.token)
        with pytest.raises(OSError, match=r"it closed the connection|reset"):  # not a time-out: turned away
            ranks.receive(peer, 1000)
    one = ranks.Star(1, 2, meeting, 5.0)
    zero = rank0.result()
    one.peers[0].sendall(b"!")
    assert zero.peers[1].recv(1) == b"!"
    one.close()


def test_a_rank_turns_from_an_impostor_and_never_tells_it_the_token(meeting: Path) -> None:
    token, heard = bytes(range(32)), []

    def impostor(server: socket.socket) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                heard.append(bytes(ranks.receive(peer, 20)))
                peer.sendall(bytes(48))
                heard.append(peer.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        ranks.publish(meeting, {"hosts": ["127.0.0.1"], "port": port, "token": token.hex()})
        pool.submit(impostor, server)
        try:
            with pytest.raises(ranks.JobError) as caught:
                ranks.Star(1, 2, meeting, timeout=0.3)
        finally:
            server.shutdown(socket.SHUT_RDWR)
    assert str(caught.value).startswith(
        f"waited 0.3 s, found no way to rank 0 by {meeting} (127.0.0.1 port {port}: "
    )
    assert "not rank 0 of this job" in str(caught.value)
    assert token not in b"".join(heard)
    assert b"" in heard  # after the impostor's answer came nothing


def test_a_file_left_by_a_dead_run_does_not_mislead(meeting: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks.publish(meeting, {"hosts": ["127.0.0.1"], "port": port, "token": "00" * 32})
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(ranks.Star, 1, 2, meeting, 5.0)
        zero = ranks.Star(0, 2, meeting, 5.0)
        one.result().close()
        zero.close()


def test_a_wrong_address_is_passed_over(meeting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "own_addresses", lambda: ["no-such-host.invalid", "127.0.0.1"])
    assert together(2, meeting, lambda star: float(star.sum(1.0))) == [2.0, 2.0]


def test_who_did_not_come_is_said(meeting: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(ranks.Star, 1, 4, meeting, 5.0)
        with pytest.raises(ranks.JobError, match=r"^waited 0\.5 s, rank 2, 3 did not come$"):
            ranks.Star(0, 4, meeting, timeout=0.5)
        one.result().close()
    assert list(meeting.parent.iterdir()) == []


def test_a_folder_that_is_not_shared_is_suspected(meeting: Path) -> None:
    with pytest.raises(ranks.JobError) as caught:
        ranks.Star(1, 2, meeting, timeout=0.2)
    assert str(caught.value).endswith(f"by {meeting} (it is not there; do all nodes share its directory?)")


def test_why_a_call_failed_is_not_forgotten_when_the_file_goes(
    meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        meeting.unlink()
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(ranks, "call", refused)
    ranks.publish(meeting, {"hosts": ["n1"], "port": 9, "token": ""})
    with pytest.raises(ranks.JobError, match=r"\(n1 port 9: Connection refused\)$"):
        ranks.Star(1, 2, meeting, timeout=0.3)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ranks.JobError, match=r"the ranks meet by .*gone/m\.json, which fails: No such file"):
        ranks.Star(0, 2, tmp_path / "gone" / "m.json", timeout=0.2)


# --- what is computed ---------------------------------------------------------------------------------------


def a_model(star: Any = None) -> Any:
    return of_the_example("train").NumpyModel(6, 0.1, 3, None, star)


def some_digits(count: int) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    return random.random((count, 64)), random.integers(0, 10, count)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    model, (images, labels) = a_model(), some_digits(9)
    _, gradient = model.gradient(images, labels)
    for index in np.random.default_rng(0).choice(len(gradient), 60, replace=False):
        at, losses = model.parameters[index], []
        for h in (1e-6, -1e-6):
            model.parameters[index] = at + h
            losses.append(model.gradient(images, labels)[0])
        model.parameters[index] = at
        assert gradient[index] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("batch", [64, 63, 5, 2])  # 63: parts differ in size; 2: two ranks have nothing
def test_four_ranks_take_the_step_that_one_takes(batch: int, meeting: Path) -> None:
    images, labels = some_digits(batch)

    def step(star: Any) -> Any:
        model = a_model(star)
        mine = slice(star.rank, None, star.size)
        for _ in range(3):
            loss = model.step(images[mine], labels[mine], batch)
        return model.parameters, float(star.sum(loss))

    (alone, loss_alone), *_ = together(1, meeting, step)
    results = together(4, meeting, step)
    assert not np.allclose(alone, a_model().parameters, atol=1e-4)
    for parameters, loss in results:
        np.testing.assert_allclose(parameters, alone, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(parameters, results[0][0])
        assert loss == pytest.approx(loss_alone, rel=1e-12)


def test_no_held_out_digit_is_trained_on() -> None:
    (images, labels), (held, held_labels) = of_the_example("train").digits()
    assert images.shape == (5 * 1437, 64)
    assert held.shape == (of_the_example("train").HELD_OUT, 64)
    assert len(labels) == len(images)
    assert np.bincount(held_labels).min() >= 34  # every digit is asked for
    seen = {image.tobytes() for image in images}
    assert not any(image.tobytes() in seen for image in held)


def test_an_emulated_gpu_shows_load_while_its_rank_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tmp_path / "n1" / "2" / "load"
    load.mkdir(parents=True)
    monkeypatch.setenv("GSUB_EMU_GPUS", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with of_the_example("train").emulated_load("2"):
        assert "utilization 85\n" in (load / str(os.getpid())).read_text()
    with of_the_example("train").emulated_load("-"):
        assert list(load.iterdir()) == []


# --- as a user runs it --------------------------------------------------------------------------------------


def start(rank: int, size: int, folder: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "2" if size > 1 else "1",
        "SLURMD_NODENAME": f"n{1 + rank % 2}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE / "train.py"), *args],
        cwd=folder,
        env={"PATH": os.environ["PATH"]} | step | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(size: int, folder: Path, *args: str, **env: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank."""
    processes = [start(rank, size, folder, *args, **env) for rank in range(size)]
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


SHORT = ("--epochs=3", "--hidden=32", "--lr=0.1")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_number_of_ranks_does_not_change_the_result(backend: str, tmp_path: Path) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    alone = run(1, tmp_path, *SHORT, f"--backend={backend}")
    three = run(3, tmp_path, *SHORT, f"--backend={backend}", "--min-accuracy=0.8")
    assert [code for code, _, _ in alone + three] == [0, 0, 0, 0], three
    (accuracy, size, nodes), (accuracy3, size3, nodes3) = FINAL.findall(alone[0][1] + three[0][1])
    assert (size, nodes, size3, nodes3) == ("1", "1", "3", "2")
    assert float(accuracy) == pytest.approx(float(accuracy3), abs=0 if backend == "numpy" else 0.006)
    losses, losses3 = ([float(line[2]) for line in EPOCH.findall(out)] for out in (alone[0][1], three[0][1]))
    assert len(losses) == 3
    assert losses == pytest.approx(losses3, abs=2e-4 if backend == "numpy" else 2e-3)
    assert losses[0] > losses[1] > losses[2] > 0
    for rank, (_, out, err) in enumerate(three):
        assert f"rank {rank} of 3: node n{1 + rank % 2}, local rank 0, GPU -\n" in out
        assert ("epoch" in out) is (rank == 0)
        assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_seed_decides() -> None:
    outs = [
        run(1, Path("/"), "--epochs=1", "--hidden=8", "--backend=numpy", f"--seed={seed}")[0][1]
        for seed in (1, 1, 2)
    ]
    first, again, other = (EPOCH.findall(out)[0] for out in outs)
    assert first == again
    assert first[2] != other[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "env", "code", "error"),
    [
        (["--epochs=0"], {}, 2, r"argument --epochs: '0' is not a whole number above 0"),
        (["--hidden=many"], {}, 2, r"argument --hidden: 'many' is not a whole number above 0"),
        (["--what"], {}, 2, r"unrecognized arguments: --what"),
        (
            [],
            {"SLURM_PROCID": "9"},
            2,
            r"^error: SLURM_PROCID=9 cannot be among 1 ranks: start the ranks with srun",
        ),
        (
            ["--epochs=1", "--min-accuracy=1.1"],
            {},
            1,
            r"^error: accuracy 0\.\d+ is below --min-accuracy 1\.1\n$",
        ),
        (
            ["--lr=1e300"],
            {},
            1,
            r"\nerror: rank 0 on node n1: the loss is nan in epoch 1: lower --lr \(now 1e\+300\)\n$",
        ),
    ],
)
def test_errors_and_exit_codes(
    args: list[str], env: dict[str, str], code: int, error: str, tmp_path: Path
) -> None:
    [(status, _, err)] = run(1, tmp_path, "--backend=numpy", *args, **env)
    assert status == code
    assert re.search(error, "\n" + err if error.startswith(r"\n") else err), err
    assert "Traceback" not in err


def test_without_scikit_learn_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError(\"No module named 'sklearn'\")")
    [(code, _, err)] = run(1, tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 1
    cause, cure = "No module named 'sklearn'", "python3 -m pip install numpy scikit-learn"
    wanted = f"train.py needs NumPy and scikit-learn ({cause}): {cure}"
    assert err == wanted + "\n"


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_at_once(tmp_path: Path) -> None:
    processes = [start(rank, 3, tmp_path, "--epochs=100000", "--backend=numpy") for rank in range(3)]
    try:
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            if line.startswith("epoch 2/"):
                break
        processes[1].kill()
        began = time.monotonic()
        errors = [processes[rank].communicate(timeout=20)[1] for rank in (0, 2)]
        assert time.monotonic() - began < 10
    finally:
        for process in processes:
            process.kill()
    assert [processes[0].returncode, processes[2].returncode] == [1, 1]
    assert errors[0].startswith("error: rank 0 on node n1: lost rank 1 (")
    assert errors[1].startswith("error: rank 2 on node n1: lost rank 0 (")
    assert "Traceback" not in errors[0] + errors[1]


@pytest.mark.parametrize("below", [".", "examples/digits"])
def test_the_script_finds_train_py_here_and_from_the_repository(below: str, tmp_path: Path) -> None:
    """With a stand-in for srun that prints where it is started and with what."""
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    (tmp_path / below / "train.py").touch()
    done = batch(tmp_path, "--epochs", "2 3", SLURM_CPUS_PER_TASK="6", PYTHON="/opt/py")
    assert done.returncode == 0
    where, *command = done.stdout.splitlines()
    assert Path(where) == (tmp_path / below)
    assert command == ["--cpus-per-task=6", "--kill-on-bad-exit=1", "/opt/py", "train.py", "--epochs", "2 3"]


def test_the_script_says_where_to_submit_from(tmp_path: Path) -> None:
    done = batch(tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr == f"error: no train.py in {tmp_path}: submit this job from the folder examples/digits\n"
    )


def batch(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """train.sh as slurmd runs it: a copy, started in the folder of the submission."""
    bin_, spool = folder / "bin", folder / "spool"
    bin_.mkdir()
    spool.mkdir()
    (bin_ / "srun").write_text("#!/bin/sh\npwd\nprintf '%s\\n' \"$@\"\n")
    (bin_ / "srun").chmod(0o755)
    script = shutil.copy(EXAMPLE / "train.sh", spool / "slurm_script")
    path = {"PATH": f"{bin_}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", script, *args], cwd=folder, env=path | env, capture_output=True, text=True, check=False
    )
