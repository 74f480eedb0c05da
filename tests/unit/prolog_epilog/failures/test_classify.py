"""Logs to findings, end to end: with the rules that gsub has."""

from __future__ import annotations

from textwrap import dedent

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.findings import Finding
from prolog_epilog.failures.classify import Ended, case_of, classify, fingerprint
from prolog_epilog.failures.text import LogText
from tests.properties import examples

PROGRESS = "".join(f"step {n * 10} | loss {3 - n / 100:.4f} | lr 1e-04 | 28797 tok/s\n" for n in range(1, 40))
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 47.37 GiB"
    " of which 167.69 MiB is free."
)


def log(text: str, name: str = "train.log") -> LogText:
    return LogText.of(name, dedent(text).encode())


def raised(line: str, frame: str = 'File "train.py", line 8, in main\n    run()') -> str:
    return f"Traceback (most recent call last):\n  {frame}\n{line}\n"


def reason(text: str, **ended: object) -> str:
    return classify([log(text)], Ended(**ended)).reason  # type: ignore[arg-type]


def test_a_finding_has_its_line_its_advice_and_its_confidence():
    found = classify([log(PROGRESS + raised(OOM))])
    assert (found.reason, found.tier, found.confidence) == ("gpu_oom", "explicit", 0.95)
    (evidence,) = found.evidence
    assert (evidence.file, evidence.line, evidence.source) == ("train.log", 43, "user")
    assert evidence.text == OOM
    assert found.advice
    assert found.signature
    assert found.progressed is True
    assert len(found.fingerprint) == 16


@pytest.mark.parametrize("data", [b"", b"\n\n \n", b"\x00\n"[1:]])
def test_an_empty_log_says_nothing(data):
    found = classify([LogText.of("x", data)])
    assert (found.reason, found.remarks) == ("no_signature", ("The log is empty.",))
    assert classify([]).reason == "no_signature"


def test_a_log_of_work_alone_says_neither_that_it_failed_nor_that_it_ended_well():
    found = classify([log(PROGRESS)])
    assert (found.reason, found.confidence, found.evidence) == ("no_signature", 0.5, ())
    assert found.remarks == ("The log does not say how it ended, neither well nor badly.",)
    assert classify([log(PROGRESS)], Ended("COMPLETED", 0)).reason == "none"
    assert classify([log(PROGRESS)], Ended("FAILED", 1)).reason == "no_signature"


@pytest.mark.parametrize(
    "text", ["Killed\n", "exit status 1\n", "srun: error: n17: task 3: Exited with exit code 1\n"]
)
def test_an_end_without_a_word_is_told_so(text):
    assert reason(PROGRESS + text) == "no_signature"


def test_secrets_are_masked():
    found = classify(
        [
            log(
                raised(
                    "OSError: 401 Client Error: https://me:hunter22@host/x hf_abcdefghijklmnopqrstuvwxyzABCDEF"
                )
            )
        ]
    )
    text = found.evidence[0].text
    assert "hunter22" not in text
    assert "abcdefghij" not in text


NOT_MADE = """Traceback (most recent call last):
  File "/home/ada/train.py", line 20, in <module>
    with open(os.path.join(args.out, "args.json"), "w") as f:
FileNotFoundError: [Errno 2] No such file or directory: '/project/exp7/args.json'
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("mkdir: cannot create directory '/project/exp7': Permission denied\n", "permission_error"),
        ("cp: error writing '/project/exp7/args.json': No space left on device\n", "no_space"),
        ("mkdir: cannot create directory '/project/exp70': Permission denied\n", "output_error"),
        ("mkdir: cannot create directory '/project': Permission denied\n", "output_error"),
        ("/project/exp7: line 3: /opt/init.sh: Permission denied\n", "output_error"),
    ],
)
def test_what_could_not_be_made_before_is_why_it_is_missing(before, expected):
    assert reason(before + NOT_MADE) == expected


def test_of_a_long_line_the_words_that_decided_are_quoted():
    """And nothing of a secret whose name lies before what is looked at."""
    secret, words = "Zq8Lk2Xw9Vn4" * 1000, "CUDA out of memory. Tried to allocate 2.00 GiB"
    line = (
        "{"
        + "'A': 'aa', " * 2000
        + f"'HF_TOKEN': '{secret}', 'ERROR': '{words}', "
        + "'A': 'aa', " * 2000
        + "}\n"
    )
    found = classify([log(line)])
    assert found.reason == "gpu_oom"
    assert words in found.evidence[0].text
    assert secret[:12] not in found.evidence[0].text
    assert len(found.evidence[0].text) <= 600


class TestTraps:
    """Each is a classification that others got wrong (reference/anchors.md 4.1)."""

    def test_sigterm_is_not_always_the_time_limit(self):
        assert reason(PROGRESS + "Terminated\n", exit_code=143) == "no_signature"

    def test_a_full_disk_is_told_as_such(self):
        assert reason(PROGRESS + raised("OSError: [Errno 28] No space left on device")) == "no_space"

    def test_memory_before_the_timeout_is_the_cause(self):
        timeout = "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(S=880)"
        assert reason(PROGRESS + raised(OOM) + timeout + "\n") == "gpu_oom"

    def test_cuda_out_of_memory_is_a_plain_failed(self):
        assert reason(raised(OOM), state="FAILED", exit_code=1) == "gpu_oom"

    def test_a_completed_job_has_no_reason(self):
        assert reason(raised(OOM), state="COMPLETED", exit_code=0) == "none"

    def test_137_alone_is_not_memory(self):
        assert reason(PROGRESS + "Killed\n", exit_code=137, state="FAILED") == "no_signature"
        assert reason(PROGRESS + "Killed\n", exit_code=0, state="OUT_OF_MEMORY") == "cpu_oom"


def test_the_stack_s_source_lines_are_no_evidence():
    frame = 'File "train.py", line 8, in main\n    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")'
    assert reason(raised("ZeroDivisionError: division by zero", frame)) == "semantic_error"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ('File "train.py", line 8, in main\n    data = np.load(path)', "missing_input"),
        (
            'File "/x/torch/serialization.py", line 8, in save\n    torch.save(state, path)',
            "checkpoint_error",
        ),
        ('File "train.py", line 8, in main\n    handler = logging.FileHandler(path)', "output_error"),
    ],
)
def test_the_stack_decides_what_a_missing_file_is(frame, expected):
    assert reason(raised("FileNotFoundError: [Errno 2] No such file or directory: 'x'", frame)) == expected


def test_ranks_are_set_in_time_order_whatever_the_order_of_their_files():
    zero = log("2026-08-14 06:19:30 - step 1\n" + raised(OOM), "rank0.log")
    one = log("2026-08-14 06:19:18 - step 1\n" + raised("KeyError: 'x'"), "rank1.log")
    for logs in ([zero, one], [one, zero]):
        found = classify(logs)
        assert (found.reason, found.evidence[0].file) == ("semantic_error", "rank1.log")
        assert found.evidence[1].file == "rank0.log"


def test_the_rank_that_failed_is_told():
    text = "[rank3]: " + raised(OOM).strip().replace("\n", "\n[rank3]: ") + "\n"
    found = classify([log(PROGRESS + text)])
    assert (found.reason, found.rank) == ("gpu_oom", 3)


def test_the_same_evidence_in_another_run_has_the_same_fingerprint():
    one = classify([log(raised("KeyError: 'x'"))])
    two = classify([log(PROGRESS + raised("KeyError: 'x'"), "other.log")])
    other = classify([log(raised("KeyError: 'y'"))])
    assert one.fingerprint == two.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("pid 17 at 0x7f3a", "pid 9 at 0x1"),
        ("No such file: '/a/b/c.npz'", "No such file: '/q/r.bin'"),
        ("2026-08-14 06:19:18,579 bad", "2025-01-01T00:00:00Z bad"),
        ("run 3f2a9c1b77de failed", "run 1234567890ab failed"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA out of memory. Tried to allocate 19.6 GiB"),
    ],
)
def test_what_differs_between_runs_is_not_in_it(one, two):
    assert fingerprint("r", one) == fingerprint("r", two)


@pytest.mark.slow
def test_a_log_of_nothing_but_failures_is_weighed_by_its_ends():
    lines = b"KeyError: 'x'\nretrying in 5 s\nsrun: error: n1: task 0: Exited with exit code 1\n"
    case = case_of([LogText.of("x", lines * 20_000)] * 2)
    assert len(case.signs) <= 1000
    assert len(case.marks) <= 1000
    assert {sign.log for sign in case.signs} == {0, 1}


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.binary(max_size=600), min_size=1, max_size=3),
    st.sampled_from([None, "FAILED", "COMPLETED", "TIMEOUT", "nonsense", ""]),
    st.none() | st.integers(-300, 300),
)
def test_any_bytes_have_an_answer_that_may_travel(parts, state, code):
    logs = [LogText.of(f"{n}.log", raised("KeyError: 'x'").encode() + data) for n, data in enumerate(parts)]
    found = classify(logs, Ended(state, code))
    msgspec.json.decode(msgspec.json.encode(found), type=Finding)


OUT_OF_MEMORY = (
    "Traceback (most recent call last):\n"
    '  File "/x/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n'
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU\n"
)
IGNORED = (
    "terminate called without an active exception\n"
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x5be>\n"
    "Traceback (most recent call last):\n"
    '  File "/x/torch/utils/data/dataloader.py", line 1479, in __del__\n    self._shutdown_workers()\n'
    "RuntimeError: DataLoader worker (pid 8392) is killed by signal: Aborted.\n"
)


def test_an_ignored_exception_is_one_traceback_and_not_the_next():
    assert classify([log(PROGRESS + IGNORED + OUT_OF_MEMORY)]).reason == "gpu_oom"
    assert classify([log(PROGRESS + OUT_OF_MEMORY + IGNORED)]).reason == "gpu_oom"


def test_a_heavy_warning_gives_way_to_the_exception_that_ended_the_run():
    text = (
        "2026-08-17 05:59:20,378: W tensorflow/x.cc:2348] TensorFlow was not built with CUDA kernel binaries compatible"
        " with compute capability 9.0. CUDA kernels will be jit-compiled from PTX\n"
        "Traceback (most recent call last):\n"
        '  File "/x/transformers/utils/hub.py", line 623, in cached_file\n    raise EnvironmentError(message)\n'
        "OSError: /models/part does not appear to have a file named config.json. Checkout 'https://x/tree/main'.\n"
    )
    assert classify([log(text)]).reason == "missing_input"


def test_one_exception_that_two_ranks_wrote_into_each_other():
    text = (
        "Traceback (most recent call last):\nTraceback (most recent call last):\n"
        '  File "/x/train.py", line 3, in <module>\n    from peft import a\n'
        "ImportErrorImportError: : cannot import name 'a' from 'peft' (/x/peft/__init__.py)cannot import name 'a'\n"
    )
    assert classify([log(text)]).reason == "import_error"


def test_einval_says_nothing_of_an_output():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/multiprocessing/reduction.py", line 60, in dump\n    ForkingPickler(file, protocol).dump(obj)\n'
        "OSError: [Errno 22] Invalid argument\n"
        "Traceback (most recent call last):\n"
        '  File "/x/multiprocessing/spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\n'
        "_pickle.UnpicklingError: pickle data was truncated\n"
    )
    assert classify([log(text)]).reason == "corrupt_input"


@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_lost_its_peer_gives_way_though_srun_brings_its_lines_first(first: int):
    lost = (
        "0: Traceback (most recent call last):\n"
        '0:   File "/x/ranks.py", line 20, in <module>\n0:     data = peer.recv(1)\n'
        "0: ConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    died = (
        "1: Traceback (most recent call last):\n"
        '1:   File "/x/ranks.py", line 12, in <module>\n1:     a + b\n'
        "1: ValueError: operands could not be broadcast together with shapes (2,) (3,)\n"
    )
    found = classify([log("".join((lost, died) if first == 0 else (died, lost)))])
    assert (found.reason, found.rank) == ("semantic_error", 1)
    assert classify([log(lost)]).reason == "network_error"


def test_the_node_that_failed_is_not_the_one_that_tells_of_it():
    told = "slurmstepd-n1: error: *** JOB 13 ON n1 CANCELLED AT 2026-11-22T20:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
    found = classify([log(told)])
    assert (found.reason, found.node) == ("node_failure", "")
    found = classify([log(told + "srun: error: Node failure on n3\n")])
    assert (found.reason, found.node) == ("node_failure", "n3")
