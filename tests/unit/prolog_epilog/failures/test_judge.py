"""What Slurm and the nodes know, joined with what the log says: the fourth rule, and traps that others fell into."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.findings import Evidence, Finding
from prolog_epilog.failures.exits import exit_words, reason_of_exit
from prolog_epilog.failures.judge import HARDWARE_XIDS, PROGRAM_XIDS, NodeWord, SlurmWord, judge
from prolog_epilog.failures.taxonomy import REASONS

NOTHING = Finding("no_signature", 0.5)
GOES = Finding("none", 0.5)
ENDED = Finding("none", 0.9, evidence=(Evidence("Training completed", "a.log", 90),))
FAILED = SlurmWord("FAILED", 1, 0)


def said(reason: str, tier: str = "explicit", confidence: float = 0.85) -> Finding:
    return Finding(reason, confidence, tier, (Evidence(f"line of {reason}", "a.log", 7),), rank=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("TIMEOUT", "time_limit"),
        ("DEADLINE", "time_limit"),
        ("OUT_OF_MEMORY", "cpu_oom"),
        ("NODE_FAIL", "node_failure"),
        ("BOOT_FAIL", "node_failure"),
        ("PREEMPTED", "preempted"),
        pytest.param("REQUEUED", "requeued", marks=pytest.mark.case("F3")),
        ("CANCELLED", "cancelled"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("cancelled by 0", "cancelled"),
    ],
)
@pytest.mark.parametrize(
    "log",
    [None, NOTHING, GOES, said("traceback", "implicit"), said("nccl_error", "cascade"), said("network_error"),
     said("semantic_error", confidence=0.65)],
)  # fmt: skip
def test_the_scheduler_s_states_decide(state, reason, log):
    verdict = judge(log, SlurmWord(state, 0, 15))
    assert (verdict.reason, verdict.tier) == (reason, "decisive")
    assert verdict.evidence[0].what == "slurm"
    assert verdict.evidence[0].source == "root"
    if log is not None and log.evidence:
        assert log.evidence[0] in verdict.evidence


@pytest.mark.parametrize(
    ("state", "reason"),
    [("TIMEOUT", "time_limit"), ("OUT_OF_MEMORY", "cpu_oom"), ("NODE_FAIL", "node_failure")],
)
def test_slurm_knows_its_own_words_better_than_a_log_that_quotes_them(state, reason):
    """An earlier attempt's are in a log that is appended to, and anybody can print them."""
    verdict = judge(said("preempted", "decisive", 0.95), SlurmWord(state, 0, 15))
    assert (verdict.reason, verdict.evidence[0].source) == (reason, "root")
    assert any("preempted" in remark for remark in verdict.remarks)
    assert judge(said("cpu_oom", "decisive", 0.95), SlurmWord("TIMEOUT", 0, 15)).reason == "cpu_oom"


@pytest.mark.parametrize("state", ["TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "CANCELLED by 1000"])
def test_a_plain_cause_in_the_log_stands_against_them(state):
    verdict = judge(said("gpu_oom", confidence=0.95), SlurmWord(state, 0, 9))
    assert (verdict.reason, verdict.rank) == ("gpu_oom", 3)
    assert verdict.evidence[-1].what == "slurm"
    assert any(state.split()[0] in remark for remark in verdict.remarks)


def test_the_scheduler_s_word_in_the_log_is_borne_out_by_its_state():
    verdict = judge(said("time_limit", "decisive", 0.95), SlurmWord("TIMEOUT"))
    assert (verdict.reason, [kept.what for kept in verdict.evidence]) == ("time_limit", ["log", "slurm"])


def test_a_log_s_word_of_preemption_is_more_precise_than_cancelled():
    assert (
        judge(said("preempted", "decisive", 0.95), SlurmWord("CANCELLED by 0", 0, 15)).reason == "preempted"
    )


def test_a_time_limit_behind_a_good_end_is_told():
    verdict = judge(ENDED, SlurmWord("TIMEOUT", 0, 1))
    assert verdict.reason == "time_limit"
    assert any("ends well" in remark for remark in verdict.remarks)


class TestCompleted:
    def test_it_has_no_reason_whatever_it_warned_of(self):
        verdict = judge(said("gpu_oom", confidence=0.95), SlurmWord("COMPLETED", 0, 0))
        assert (verdict.reason, verdict.tier) == ("none", "none")
        assert any("gpu_oom" in remark for remark in verdict.remarks)

    def test_a_step_that_failed_in_it_is_told(self):  # NVFlare#5093: DerivedExitCode is not ExitCode
        verdict = judge(None, SlurmWord("COMPLETED", 0, 0, derived_exit_code=137))
        assert verdict.reason == "none"
        assert verdict.remarks == ("A step of it ended with exit code 137 (SIGKILL).",)

    def test_a_step_out_of_memory_in_it_is_told(self):
        verdict = judge(None, SlurmWord("COMPLETED", 0, 0, steps=("12.0 OUT_OF_MEMORY",)))
        assert (verdict.reason, verdict.remarks) == ("none", ("Step 12.0 OUT_OF_MEMORY.",))


class TestFailed:
    @pytest.mark.parametrize(
        ("code", "signal", "reason"),
        [
            (1, 0, "no_signature"),
            (2, 0, "no_signature"),
            (143, 0, "no_signature"),  # ezpz#243: SIGTERM is not a time limit
            (0, 15, "no_signature"),
            (137, 0, "no_signature"),  # SIGKILL alone is not memory
            (0, 9, "no_signature"),
            (139, 0, "invalid_memory_access"),
            (0, 11, "invalid_memory_access"),
            (0, 7, "invalid_memory_access"),
            (134, 0, "core_dump"),
            (0, 6, "core_dump"),
            (127, 0, "environment_error"),
            (130, 0, "cancelled"),
            (0, 1, "cancelled"),
        ],
    )
    @pytest.mark.parametrize("log", [None, NOTHING, GOES])
    def test_an_exit_says_little(self, code, signal, reason, log):
        verdict = judge(log, SlurmWord("FAILED", code, signal))
        assert verdict.reason == reason
        assert verdict.tier != "decisive"
        assert verdict.evidence[-1 if reason == "no_signature" else 0].what == "exit"

    @pytest.mark.parametrize("tier", ["explicit", "implicit", "cascade"])
    def test_what_the_log_says_stays(self, tier):
        log = said("core_dump", tier)
        assert judge(log, SlurmWord("FAILED", 139, 0)).reason == "core_dump"

    def test_a_failure_without_a_state_yet_is_one(self):
        assert judge(GOES, SlurmWord("", 1, 0)).reason == "no_signature"
        assert judge(GOES, SlurmWord("", None, None)) == GOES

    def test_exit_code_0_without_a_state_proves_nothing(self):
        verdict = judge(said("time_limit", "decisive", 0.95), SlurmWord("", 0, 0))
        assert verdict.reason == "time_limit"
        assert verdict.confidence < 0.95

    def test_a_good_end_before_it_is_told(self):
        verdict = judge(ENDED, FAILED)
        assert verdict.reason == "no_signature"
        assert any("ends well" in remark for remark in verdict.remarks)

    def test_a_wrapper_s_command_that_failed_behind_a_good_end_is_told(self):
        wrapper = msgspec.structs.replace(
            ENDED, remarks=("After the end: x.sh: line 3: foo: command not found",)
        )
        assert judge(wrapper, FAILED).reason == "none"

    @pytest.mark.parametrize("word", ["JobLaunchFailure", "launch failed requeued held", "Prolog"])
    def test_slurm_s_reason_decides_where_the_state_does_not(self, word):
        word = word.replace(" ", "_")
        assert judge(None, SlurmWord("FAILED", 1, 0, reason=word)).reason == "node_failure"

    @pytest.mark.parametrize(
        ("exit_code", "signal", "reason"),
        [
            (0, 9, "no_signature"),  # as slurmctld 22.05 to 26.05 put a batch script that a signal ended
            (0, 11, "invalid_memory_access"),
            (0, 6, "core_dump"),
            (15, 53, "output_error"),  # ESLURMD_IO_ERROR: the folder of --output is not there
            (15, 61, "node_failure"),
            (0, 0, "node_failure"),
        ],
    )
    def test_a_failed_launch_is_told_from_a_script_that_a_signal_ended(self, exit_code, signal, reason):
        word = SlurmWord("FAILED", exit_code, signal, reason="JobLaunchFailure")
        newer = SlurmWord("FAILED", 0, signal, reason=f"RaisedSignal:{signal}(as 26.05 has it)")
        if signal in (9, 11, 6, 53):
            assert judge(None, newer).reason == reason
        assert judge(None, word).reason == reason
        assert judge(said("gpu_oom"), word).reason == "gpu_oom"


class TestTheNodes:
    def test_a_kill_for_memory_explains_sigkill(self):
        oom = NodeWord("n1", "oom", "Memory cgroup out of memory: Killed process 77 (python)", 1.7e9)
        verdict = judge(NOTHING, SlurmWord("FAILED", 137, 0), [oom])
        assert (verdict.reason, verdict.node) == ("cpu_oom", "n1")
        assert (verdict.evidence[0].what, verdict.evidence[0].source) == ("oom", "root")

    def test_a_kill_for_memory_explains_a_lost_peer(self):
        oom = NodeWord("n1", "oom", "Killed process 77")
        assert judge(said("nccl_error", "cascade"), FAILED, [oom]).reason == "cpu_oom"
        assert judge(said("network_error"), FAILED, [oom]).reason == "cpu_oom"

    def test_a_cause_of_the_user_stays_and_the_kill_is_told(self):
        oom = NodeWord("n1", "oom", "Killed process 77")
        verdict = judge(said("syntax_error"), FAILED, [oom])
        assert verdict.reason == "syntax_error"
        assert any("killed a process" in remark for remark in verdict.remarks)

    @pytest.mark.parametrize("xid", sorted(HARDWARE_XIDS))
    @pytest.mark.parametrize(
        "log",
        [said("cuda_failure"), said("nccl_error", "cascade"), said("nccl_timeout", "implicit"), NOTHING],
    )
    def test_broken_hardware_explains_what_the_program_saw(self, xid, log):
        word = NodeWord("n2", "xid", f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=77, name=python", 1.7e9)
        verdict = judge(log, FAILED, [word])
        assert (verdict.reason, verdict.node, verdict.evidence[0].source) == ("gpu_hardware", "n2", "root")

    @pytest.mark.parametrize("xid", sorted(PROGRAM_XIDS))
    def test_a_fault_of_the_program_blames_no_hardware(self, xid):
        word = NodeWord("n2", "xid", f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=77, name=python")
        verdict = judge(said("invalid_memory_access"), FAILED, [word])
        assert verdict.reason == "invalid_memory_access"
        assert word.text in [kept.text for kept in verdict.evidence]
        assert judge(NOTHING, FAILED, [word]).reason == "no_signature"

    @pytest.mark.parametrize("reason", ["syntax_error", "missing_input", "gpu_oom", "no_space"])
    def test_a_cause_of_the_user_is_no_hardware(self, reason):
        verdict = judge(said(reason), FAILED, [NodeWord("n2", "xid", "Xid 79: GPU has fallen off the bus")])
        assert verdict.reason == reason
        assert any("n2" in remark for remark in verdict.remarks)

    def test_corrected_memory_errors_break_nothing(self):
        counted = NodeWord("n2", "ecc", "3 corrected ECC errors")
        assert judge(said("cuda_failure"), FAILED, [counted]).reason == "cuda_failure"
        broken = NodeWord("n2", "ecc", "1 uncorrected ECC error")
        assert judge(said("cuda_failure"), FAILED, [broken]).reason == "gpu_hardware"

    def test_a_lost_gpu_is_broken(self):
        lost = NodeWord("n2", "gpu_lost", "GPU 3 is lost")
        assert judge(said("cuda_init_failed"), FAILED, [lost]).reason == "gpu_hardware"

    def test_the_scheduler_s_word_is_not_taken_back_by_a_node(self):
        broken = NodeWord("n2", "gpu_lost", "GPU 3 is lost")
        assert judge(NOTHING, SlurmWord("CANCELLED by 7"), [broken]).reason == "cancelled"

    def test_a_full_disk_is_no_bad_node(self):  # ezpz#231
        health = NodeWord("n2", "health", "/scratch is 100 % full")
        assert judge(said("no_space"), FAILED, [health]).reason == "no_space"

    @pytest.mark.parametrize("kind", ["health", "throttle", "stuck"])
    def test_weaker_words_are_told_and_decide_nothing(self, kind):
        word = NodeWord("n2", kind, "odd")
        assert judge(NOTHING, FAILED, [word]).reason == "no_signature"
        assert judge(NOTHING, FAILED, [word]).remarks

    def test_a_job_that_ended_well_has_no_hardware_fault(self):
        broken = NodeWord("n2", "xid", "Xid 79")
        assert judge(ENDED, SlurmWord("COMPLETED", 0, 0), [broken]).reason == "none"

    def test_the_only_node_is_the_failing_one(self):
        assert judge(said("gpu_oom"), SlurmWord("FAILED", 1, 0, nodes=("n7",))).node == "n7"
        assert judge(said("gpu_oom"), SlurmWord("FAILED", 1, 0, nodes=("n7", "n8"))).node == ""
        assert judge(None, SlurmWord("NODE_FAIL", failed_node="n8", nodes=("n7", "n8"))).node == "n8"

    def test_of_two_nodes_the_failing_one_is_not_the_one_that_tells_of_it(self):
        told = "slurmstepd: error: *** JOB 13 ON n7 CANCELLED AT 2026-11-22T20:00:00 DUE TO NODE FAILURE, SEE LOG ***"
        log = Finding("node_failure", 0.95, "decisive", (Evidence(told),))
        assert judge(log, SlurmWord("NODE_FAIL", nodes=("n7", "n8"))).node == "n8"
        assert judge(log, SlurmWord("NODE_FAIL", nodes=("n7", "n8", "n9"))).node == ""
        assert judge(log, SlurmWord("NODE_FAIL", nodes=("n7",))).node == "n7"

    def test_the_failing_node_is_the_one_whose_epilog_did_not_run(self):
        nodes = ("n7", "n8", "n9")
        assert judge(None, SlurmWord("NODE_FAIL", nodes=nodes, silent=("n9",))).node == "n9"
        assert judge(None, SlurmWord("NODE_FAIL", nodes=nodes, silent=("n8", "n9"))).node == ""
        assert judge(None, SlurmWord("NODE_FAIL", nodes=nodes)).node == ""
        assert judge(None, SlurmWord("FAILED", 1, 0, nodes=nodes, silent=("n9",))).node == ""


def test_exits_in_words():
    assert exit_words(0, 9) == "signal 9 (SIGKILL)"
    assert exit_words(-11) == "exit code -11 (SIGSEGV)"
    assert exit_words(255) == "exit code 255"
    assert reason_of_exit(1) == ""


_findings = st.builds(
    Finding,
    st.sampled_from([*sorted(REASONS), "none"]),
    st.floats(0, 1),
    st.sampled_from(["decisive", "explicit", "implicit", "cascade", "none"]),
    st.just((Evidence("x", "a.log", 1),)) | st.just(()),
)
_words = st.builds(
    SlurmWord,
    st.sampled_from(
        ["", "FAILED", "COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED by 7", "RUNNING", "REQUEUED"]
    ),
    st.none() | st.integers(-64, 255),
    st.none() | st.integers(0, 64),
    st.none() | st.integers(0, 255),
)
_nodes = st.lists(
    st.builds(
        NodeWord,
        st.just("n1"),
        st.sampled_from(["xid", "ecc", "oom", "health", "gpu_lost", "throttle", "stuck"]),
        st.sampled_from(["Xid 79", "Xid 13", "corrected", "", "x" * 5000]),
        st.none() | st.floats(-1, 5e9),
    ),
    max_size=5,
)


@given(st.none() | _findings, _words, _nodes)
def test_a_verdict_is_always_one_that_may_travel_and_stays_when_asked_again(finding, word, nodes):
    verdict = judge(finding, word, nodes)
    assert verdict.reason == "none" or verdict.reason in REASONS
    msgspec.json.decode(msgspec.json.encode(verdict), type=Finding)
    assert judge(finding, word, nodes) == verdict
    assert judge(finding, word, nodes[::-1]).reason == verdict.reason


@given(_findings, _nodes)
def test_a_completed_job_never_has_a_reason(finding, nodes):
    assert judge(finding, SlurmWord("COMPLETED", 0, 0), nodes).reason == "none"
