"""What a signal does to a script that uses the helper, and to what else listens for it."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.gsub.train.running import HELPER, PYTHONS, in_job, script

LOOP = """
import time
gsub_train.stopping()
print("ready")
while not gsub_train.stopping():
    time.sleep(0.01)
with gsub_train.saving("ck/a b.pt", 12) as part:
    open(part, "w").write("weights")
gsub_train.stop()
"""


def test_it_is_written_for_python_3_8():
    tree = ast.parse(HELPER.read_text(), feature_version=(3, 8))
    first = next(node for node in tree.body if isinstance(node, ast.ImportFrom))
    assert (first.module, first.names[0].name) == ("__future__", "annotations")


def test_it_needs_nothing_but_python():
    modules = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(HELPER.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


def test_it_prints_itself_to_be_copied():
    done = subprocess.run([sys.executable, "-m", "gsub.train"], capture_output=True, text=True, check=True)
    assert done.stdout == HELPER.read_text()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_a_warning_lets_the_script_save_and_stop(tmp_path, python):
    with script(tmp_path, LOOP, python=python) as run:
        assert run.says() == "ready"
        run.signal(signal.SIGUSR1)
        code, _, err = run.ends()
    saved = tmp_path / "ck/a b.pt"
    assert code == 75
    assert saved.read_text() == "weights"
    told = str(saved).replace(" ", "%20")
    assert err.splitlines() == [
        f"gsub: checkpoint {told} step=12",
        f"gsub: stopped before its time limit (SIGUSR1), checkpoint={told} step=12",
    ]


@pytest.mark.parametrize(
    ("left", "says"),
    [(None, "by SIGTERM"), (3600, "by SIGTERM"), (60, "before its time limit (SIGTERM)")],
)
def test_a_sigterm_is_a_warning_only_near_the_time_limit(tmp_path, left, says):
    env = in_job() if left is None else in_job(SLURM_JOB_END_TIME=str(int(time.time()) + left))
    with script(tmp_path, LOOP, env) as run:
        assert run.says() == "ready"
        run.signal(signal.SIGTERM)
        code, _, err = run.ends()
    assert code == 75
    assert f"gsub: stopped {says}, checkpoint=" in err


def test_the_first_signal_says_why(tmp_path):
    code = """
    import signal
    gsub_train.watch()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    gsub_train.stop()
    """
    with script(tmp_path, code) as run:
        _, _, err = run.ends()
    assert err == "gsub: stopped before its time limit (SIGUSR1), checkpoint=-\n"


def test_a_second_sigterm_ends_what_does_not_listen_any_more(tmp_path):
    code = """
    import signal, time
    gsub_train.watch()
    signal.raise_signal(signal.SIGTERM)
    print("alive")
    signal.raise_signal(signal.SIGTERM)
    print("still there")
    """
    with script(tmp_path, code) as run:
        code_, out, _ = run.ends()
    assert (code_, out) == (-signal.SIGTERM, "alive\n")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_outside_a_job_signals_do_what_they_did(tmp_path, number):
    env = in_job()
    del env["SLURM_JOB_ID"]
    with script(tmp_path, LOOP, env) as run:
        assert run.says() == "ready"
        run.signal(number)
        code, _, err = run.ends()
    assert (code, err) == (-number, "")


class TestOthersHandlers:
    def test_the_one_that_was_there_is_called(self, tmp_path):
        code = """
        import signal
        def theirs(number, frame):
            print("theirs", number == signal.SIGUSR1, frame is not None)
        signal.signal(signal.SIGUSR1, theirs)
        gsub_train.watch()
        signal.raise_signal(signal.SIGUSR1)
        print(gsub_train.stopping())
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "theirs True True\nTrue\n"

    def test_one_that_came_later_and_calls_ours_is_called_once(self, tmp_path):
        code = """
        import signal
        gsub_train.watch()
        ours = signal.getsignal(signal.SIGUSR1)
        def theirs(number, frame):
            print("theirs")
            ours(number, frame)
        signal.signal(signal.SIGUSR1, theirs)
        gsub_train.watch()
        signal.raise_signal(signal.SIGUSR1)
        print(gsub_train.stopping())
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "theirs\nTrue\n"

    def test_what_it_raises_is_raised(self, tmp_path):
        code = """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
        gsub_train.watch()
        signal.raise_signal(signal.SIGTERM)
        """
        with script(tmp_path, code) as run:
            assert run.ends()[0] == 3

    def test_an_ignored_signal_is_heard(self, tmp_path):
        code = """
        import signal
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        print(gsub_train.stopping())
        signal.raise_signal(signal.SIGUSR1)
        print(gsub_train.stopping())
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "False\nTrue\n"

    def test_signals_of_ones_own_choice(self, tmp_path):
        code = """
        import signal
        gsub_train.watch(signal.SIGUSR2)
        print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
        signal.raise_signal(signal.SIGUSR2)
        print(gsub_train.stopping())
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "True\nTrue\n"

    def test_another_thread_sets_none(self, tmp_path):
        code = """
        import signal, threading
        thread = threading.Thread(target=lambda: print(gsub_train.stopping()))
        thread.start(); thread.join()
        print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "False\nTrue\n"


class TestForkedProcesses:
    """Slurm signals all processes of a step: a data loader's workers hear what the training hears."""

    CHILD = """
    import os, signal, sys
    gsub_train.watch()
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.raise_signal(signal.{first})
        os.write(tell, b"x")
        os._exit(7 if not gsub_train.stopping() else 8)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), gsub_train.stopping())
    """

    def test_a_warning_does_not_end_them(self, tmp_path):
        with script(tmp_path, self.CHILD.format(first="SIGUSR1")) as run:
            assert run.ends()[1] == "-8 False\n"

    def test_a_sigterm_does(self, tmp_path):
        with script(tmp_path, self.CHILD.format(first="SIGTERM")) as run:
            assert run.ends()[1] == f"{signal.SIGTERM.value} False\n"

    @pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
    def test_a_pool_can_be_ended(self, tmp_path, python):
        """`Pool.terminate` sends SIGTERM, and waits for ever for workers that do not end."""
        code = """
        import multiprocessing, time
        def work(_):
            gsub_train.stopping()
            begun.release()
            time.sleep(600)
        if __name__ == "__main__":
            gsub_train.watch()
            forking = multiprocessing.get_context("fork")
            begun = forking.Semaphore(0)
            pool = forking.Pool(2)
            pool.map_async(work, range(2))
            begun.acquire(); begun.acquire()
            pool.terminate(); pool.join()
            print("ended")
        """
        with script(tmp_path, code, python=python) as run:
            assert run.ends()[1] == "ended\n"

    def test_spawned_workers_can_be_ended_too(self, tmp_path):
        code = """
        import multiprocessing
        def work(number):
            gsub_train.stopping()
            return number
        if __name__ == "__main__":
            pool = multiprocessing.get_context("spawn").Pool(1)
            print(pool.map(work, [3]))
            pool.terminate(); pool.join()
        """
        with script(tmp_path, code) as run:
            assert run.ends()[1] == "[3]\n"


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({}, 0),
        ({"SLURM_RESTART_COUNT": "2"}, 2),
        ({"GSUB_RESTART": "3", "SLURM_RESTART_COUNT": "2"}, 3),
        ({"GSUB_RESTART": "0"}, 0),
        ({"GSUB_RESTART": "", "SLURM_RESTART_COUNT": "1"}, 1),
        ({"GSUB_RESTART": "²", "SLURM_RESTART_COUNT": "1"}, 1),
        ({"GSUB_RESTART": "-1; rm", "SLURM_RESTART_COUNT": "x"}, 0),
    ],
)
def test_restarts(tmp_path, env, number):
    with script(tmp_path, "print(gsub_train.restarts(), gsub_train.resuming())", in_job(**env)) as run:
        assert run.ends()[1] == f"{number} {number > 0}\n"


def test_the_time_that_is_left(tmp_path):
    code = "left = gsub_train.time_left(); print(left is not None and 3000 < left <= 3600)"
    with script(tmp_path, code, in_job(SLURM_JOB_END_TIME=str(int(time.time()) + 3600))) as run:
        assert run.ends()[1] == "True\n"
    with script(tmp_path, "print(gsub_train.time_left())", in_job(SLURM_JOB_END_TIME="soon")) as run:
        assert run.ends()[1] == "None\n"
