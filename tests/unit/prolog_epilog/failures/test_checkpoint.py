"""Which lines of a log tell of a checkpoint, and of which it may be believed that it was saved."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsub import train
from profiler.findings import Finding
from prolog_epilog.agent.log_child import checked
from prolog_epilog.failures.classify import Ended, classify
from prolog_epilog.failures.judge import SlurmWord, judge
from prolog_epilog.failures.question import Question
from prolog_epilog.failures.text import LogText
from tests.unit.gsub.train.running import in_job

_NOT_KNOWN = Ended()


def found(*logs: str, ended: Ended = _NOT_KNOWN) -> Finding:
    return classify([LogText.of(f"{n}.log", log.encode()) for n, log in enumerate(logs)], ended)


def named(*logs: str) -> tuple[str, bool]:
    finding = found(*logs)
    return finding.checkpoint, finding.resumes


STOPPED = "gsub: stopped before its time limit (SIGUSR1), checkpoint={} step=9\n"


class TestOurOwnLine:
    @pytest.mark.parametrize(
        ("log", "path"),
        [
            ("gsub: checkpoint /s/1.pt step=100\n", "/s/1.pt"),
            ("gsub: checkpoint /s/1.pt\n", "/s/1.pt"),
            ("gsub: checkpoint /s/a%20b%0Ac.pt step=1\n", "/s/a b c.pt"),
            ("gsub: checkpoint s3://bucket/1\n", "s3://bucket/1"),
            ("gsub: checkpoint /s/1.pt step=1\nstep 2\ngsub: checkpoint /s/2.pt step=2\n", "/s/2.pt"),
            (" 33%|###  | 1/3 [00:01<00:02]gsub: checkpoint /s/1.pt step=1\n", "/s/1.pt"),
            ("[rank0]: gsub: checkpoint /s/1.pt\n", "/s/1.pt"),
            ("0: gsub: checkpoint /s/1.pt\n", "/s/1.pt"),
            (STOPPED.format("/s/9.pt"), "/s/9.pt"),
            ("gsub: checkpoint /s/1.pt\n" + STOPPED.format("-"), "/s/1.pt"),
            ("gsub: stopped by SIGTERM, checkpoint=/s/9.pt\n", "/s/9.pt"),
        ],
    )
    def test_names_it_and_says_that_the_script_goes_on_from_it(self, log, path):
        assert named("step 1\n" + log) == (path, True)

    @pytest.mark.parametrize(
        "log",
        [
            "gsub: checkpoint\n",
            "gsub: checkpoint \n",
            "gsub: checkpoint gsub: checkpoint last.pt\n",
            STOPPED.format("-"),
            f"gsub: checkpoint /{'x' * 700}\n",
            '  File "train.py", line 3, in <module>\n    print("gsub: checkpoint /s/1.pt")\n',
        ],
    )
    def test_without_a_path_there_is_none(self, log):
        assert named("Traceback (most recent call last):\n" + log + "ValueError: 3\n") == ("", False)

    def test_a_secret_in_an_address_is_masked(self):
        path, _ = named("gsub: checkpoint s3://key:hunter2secret@bucket/1\n")
        assert path == "s3://key:****@bucket/1"

    def test_it_is_what_the_helper_writes(self, tmp_path):
        name = "ckpt é 100%.pt"
        code = f"from gsub import train\nopen({name!r}, 'w').write('x')\ntrain.checkpointed({name!r}, 7)\ntrain.stop()"
        done = subprocess.run(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=tmp_path, env=in_job(), timeout=120
        )
        assert done.returncode == train.STOPPED
        for line in done.stderr.decode().splitlines():
            assert named(line) == (str(tmp_path / name), True)


class TestFrameworks:
    @pytest.mark.parametrize(
        ("log", "path"),
        [
            ("  successfully saved checkpoint from iteration     510 to /l/ck [ t 1/1, p 1/1 ]\n", "/l/ck"),
            ("[Torch] Checkpoint global_step120 is ready now!\n", "global_step120"),
            (
                "I0612 checkpointer.py:147] Finished saving checkpoint to `/fsx/ckpt/run4/10000`.\n",
                "/fsx/ckpt/run4/10000",
            ),
            (
                "Saved checkpoint ckpt/checkpoint_3.pt (epoch 3 @ 6000 updates, score 4.1)\n",
                "ckpt/checkpoint_3.pt",
            ),
            ("Saved final checkpoint to out/last.pt\n", "out/last.pt"),
            ("Checkpoint saved to '/my runs/last.pt'\n", "/my runs/last.pt"),
            # announced, and the log goes on
            ("Saving model checkpoint to out/checkpoint-500\nstep 501\n", "out/checkpoint-500"),
            (
                "Epoch 1, global step 12: 'loss' reached 0.3, saving model to '/ck/e3.ckpt' as top 1\nepoch 2\n",
                "/ck/e3.ckpt",
            ),
            ("=> saving checkpoint 'out/1.pth.tar'\nEpoch: 4\n", "out/1.pth.tar"),
            # the last one was announced only
            (
                "Saving model checkpoint to out/checkpoint-500\nSaving model checkpoint to out/checkpoint-1000\n",
                "out/checkpoint-500",
            ),
            ("Saved checkpoint to a/1.pt\nsaving checkpoint to a/2.pt\n", "a/1.pt"),
        ],
    )
    def test_names_what_was_saved(self, log, path):
        assert named("step 1\n" + log) == (path, False)

    @pytest.mark.parametrize(
        "log",
        [
            "Saving model checkpoint to out/checkpoint-500\n",
            "=> saving checkpoint 'out/1.pth.tar'\nKilled\n",
            "=> loading checkpoint 'out/last.pth.tar'\nepoch 3\n",
            "Loading checkpoint shards: 100%|##########| 4/4 [00:07<00:00,  1.9s/it]\n",
            "Restoring states from the checkpoint path at /ck/e3.ckpt\nepoch 3\n",
            "Failed to save: checkpoint saved to /x/1.pt was cut off\nstep 3\n",
            "[ERROR] saving checkpoint to /x/1.pt\nstep 3\n",
            "could not save checkpoint to /x/1.pt\nstep 3\n",
            "Saved checkpoint at step 500\nstep 501\n",
            "Saving checkpoint at step: 2241\nstep 2242\n",
            "Saving latest checkpoint..\nstep 3\n",
            "[Torch] Saving out/global_step120/mp_rank_00_model_states.pt...\n",
            "[process=0] Started async saving checkpoint to /lustre/ckpt/1000.\nstep 1001\n",
        ],
    )
    def test_names_nothing_that_may_not_be_there(self, log):
        assert named("step 1\n" + log) == ("", False)

    def test_gsubs_own_line_counts_before_it(self):
        log = "gsub: checkpoint /s/1.pt\nSaved checkpoint to /s/other.pt\nstep 3\n"
        assert named(log) == ("/s/1.pt", True)
        assert named("Saved checkpoint to /s/other.pt\n", "gsub: checkpoint /s/1.pt\n") == ("/s/1.pt", True)

    def test_of_several_logs_the_last_by_time(self):
        logs = [f"2026-08-14 06:19:1{n} Saved checkpoint to /s/{n}.pt\n" for n in (2, 5, 3)]
        assert named(*logs) == ("/s/5.pt", False)
        assert named("Saved checkpoint to /s/1.pt\n", "Saved checkpoint to /s/2.pt\n") == ("/s/1.pt", False)


class TestStopping:
    """The verdict on a run that stopped in time: its own word where Slurm only saw an exit code, else Slurm's."""

    @pytest.mark.parametrize(
        ("state", "code", "signal", "reason"),
        [
            ("FAILED", 75, 0, "time_limit"),
            ("TIMEOUT", 0, 1, "time_limit"),
            ("CANCELLED by 1000", 0, 15, "cancelled"),
            ("PREEMPTED", 0, 15, "preempted"),
            ("NODE_FAIL", 0, 0, "node_failure"),
            ("OUT_OF_MEMORY", 0, 125, "cpu_oom"),
            ("COMPLETED", 0, 0, "none"),
        ],
    )
    def test_with_slurms_word(self, state, code, signal, reason):
        log = "step 1\n" + STOPPED.format("/s/9.pt") + "srun: error: n1: task 0: Exited with exit code 75\n"
        finding = found(log, ended=Ended(state, code, signal))
        assert (finding.reason, finding.checkpoint, finding.resumes) == (reason, "/s/9.pt", True)

    def test_a_sigterm_alone_gives_no_reason(self):
        finding = found("gsub: stopped by SIGTERM, checkpoint=/s/9.pt\n", ended=Ended("FAILED", 75, 0))
        assert (finding.reason, finding.checkpoint) == ("no_signature", "/s/9.pt")

    def test_ranks_that_a_launcher_ends_do_not_hide_the_one_that_failed(self):
        log = "step 1\n[rank0]: gsub: stopped by SIGTERM, checkpoint=/s/9.pt step=9\n"
        log += "[rank1]: Traceback (most recent call last):\n"
        log += '[rank1]:   File "t.py", line 3, in <module>\n[rank1]:     import einops\n'
        log += "[rank1]: ModuleNotFoundError: No module named 'einops'\n"
        finding = found(log, ended=Ended("FAILED", 1, 0))
        assert (finding.reason, finding.checkpoint) == ("import_error", "/s/9.pt")

    def test_all_ranks_end_with_it(self):
        log = "step 1\n" + STOPPED.format("/s/9.pt")
        log += "srun: error: n2: task 1: Exited with exit code 75\nsrun: Terminating StepId=7.0\n"
        log += "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-08-14T06:19:18 ***\n"
        log += "srun: error: n1: task 0: Terminated\n"
        assert found(log, ended=Ended("FAILED", 75, 0)).reason == "time_limit"

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "gpu_oom"),
            (
                "Traceback (most recent call last):\n"
                '  File "t.py", line 3, in <module>\n    import einops\n'
                "ModuleNotFoundError: No module named 'einops'\n",
                "import_error",
            ),
        ],
    )
    def test_an_earlier_attempts_stop_does_not_hide_a_later_error(self, error, reason):
        """With --open-mode=append all attempts are in one log."""
        log = "step 1\nstep 2\n" + STOPPED.format("/s/9.pt") + "step 3\nstep 4\n" + error
        assert found(log, ended=Ended("FAILED", 1, 0)).reason == reason


def test_the_verdict_keeps_it_whatever_decides():
    finding = Finding("no_signature", checkpoint="/s/1.pt", resumes=True)
    for state in ("TIMEOUT", "NODE_FAIL", "FAILED", "COMPLETED", ""):
        verdict = judge(finding, SlurmWord(state, 1))
        assert (verdict.checkpoint, verdict.resumes) == ("/s/1.pt", True)
    assert judge(None, SlurmWord("TIMEOUT")).checkpoint == ""


class TestAChildThatLies:
    QUESTION = Question(1000, None, ("/h/a.out",), ("7",), 0.0, 1.0)

    def answer(self, **fields: object) -> Finding:
        return checked(msgspec.json.encode({"reason": "no_signature", **fields}), self.QUESTION)

    def test_is_kept_to_one_line(self):
        finding = self.answer(checkpoint="/s/1.pt\n\x1b[31mroot", resumes=True)
        assert (finding.checkpoint, finding.resumes) == ("/s/1.pt ?[31mroot", True)

    @pytest.mark.parametrize("fields", [{"checkpoint": "x" * 601}, {"checkpoint": 7}, {"resumes": "yes"}])
    def test_is_not_believed(self, fields):
        from prolog_epilog.agent.log_child import NoAnswerError

        with pytest.raises(NoAnswerError):
            self.answer(**fields)


@given(st.text(max_size=300))
def test_no_line_is_more_than_a_bounded_line(text):
    path, _ = named(f"gsub: checkpoint {text}\nSaved checkpoint to {text}\n")
    assert len(path) <= 600
    assert path.isprintable()
