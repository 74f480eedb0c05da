"""Slurm's words into values: tables of what 22.05 to 26.05 print, and properties over what they could."""

import contextlib
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import records
from slurm_plugins.client import decode, parse
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.resources import Hosts, Tres
from slurm_plugins.client.states import ExitStatus, JobFlag, JobState, NodeState
from slurm_plugins.client.submission import LAST_JOB_ID
from slurm_plugins.client.values import AccountingRecord

G = 1 << 30
FAR = pytest.mark.case("A2")
WIDTH = pytest.mark.case("S1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00", 0),
        ("10:00", 600),
        ("1:00:00", 3600),
        ("01:00:00", 3600),
        ("1-00:00:00", 86400),
        ("7-00:00:00", 7 * 86400),
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("1-12", 86400 + 12 * 3600),
        ("1-12:30", 86400 + 12 * 3600 + 30 * 60),
        ("00:00:05.123", 5),
        ("45", 45),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_duration(text, seconds):
    assert parse.duration(text) == seconds


@pytest.mark.parametrize("text", ["1:2:3:4", "-5", "1h", "10:00:", "1-", "٣:٠٠x"])
def test_duration_refuses(text):
    with pytest.raises(SlurmFormatError) as caught:
        parse.duration(text)
    assert caught.value.line == text


@given(st.integers(0, 10**8))
def test_duration_reads_all_that_slurm_writes(seconds):
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    # secs2time_str of parse_time.c
    text = f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}" if days else f"{hours:02d}:{minutes:02d}:{rest:02d}"
    assert parse.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 3600),
        ("1:00:00", 3600),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("PARTITION_LIMIT", None),
    ],
)
def test_time_limit(text, seconds):
    assert parse.time_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1795236133", datetime(2026, 11, 21, 4, 42, 13, tzinfo=timezone.utc)),
        ("N/A", None),
        ("Unknown", None),
        ("None", None),
        ("", None),
        ("0", None),
        ("4294967294", None),
        pytest.param("253402300799", datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc), marks=FAR),
        pytest.param("253402300800", None, marks=FAR),
        pytest.param("604801795311497", None, marks=FAR),
        pytest.param("-9223372036854775808", None, marks=FAR),
        pytest.param("9" * 5000, None, marks=FAR),
    ],
)
def test_time(text, expected):
    assert parse.time(text) == expected


@pytest.mark.parametrize("text", ["2026-11-21T04:42:13", "now", "12:00", "-5", "١٢"])
def test_time_refuses_local_times(text):
    with pytest.raises(SlurmFormatError):
        parse.time(text)


@given(st.integers(1, 2**31))
def test_times_are_aware_and_exact(seconds):
    found = parse.time(str(seconds))
    assert found is not None
    assert found.utcoffset() == timedelta(0)
    assert found.timestamp() == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4G", 4 * G),
        ("4096M", 4 * G),
        ("500", 500 << 20),
        ("1.50T", 1536 * G),
        ("1000G", 1000 * G),
        ("2Gn", 2 * G),
        ("100Mc", 100 << 20),
        ("512000", 512000 << 20),
        ("UNLIMITED", None),
        ("(null)", None),
        ("N/A", None),
        ("65534", 65534 << 20),
        pytest.param("4294967294", 4294967294 << 20, marks=WIDTH),
        pytest.param("18446744073709551614", None, marks=WIDTH),
        # no store and no JSON holds more
        pytest.param("8?", 2**63 - 1, marks=FAR),
        pytest.param("9223372036854775807M", 2**63 - 1, marks=FAR),
    ],
)
def test_memory(text, expected):
    assert parse.memory(text) == expected


@pytest.mark.parametrize("text", ["4X", "-1G", "G", "4 G", "1e3M"])
def test_memory_refuses(text):
    with pytest.raises(SlurmFormatError):
        parse.memory(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("-5", -5),
        ("1-3", 1),
        ("2K", 2048),
        ("4294967294", None),
        pytest.param("65534", 65534, marks=WIDTH),
        pytest.param("65535", 65535, marks=WIDTH),
        ("18446744073709551614", None),
        ("UNLIMITED", None),
        ("*", None),
        ("N/A", None),
        ("11670664956316683264", 11670664956316683264),
    ],
)
def test_count(text, expected):
    assert parse.count(text) == expected


@WIDTH
@pytest.mark.parametrize("wide", [16, 32, 64])
@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("below", [1, 2, 3])
def test_a_sentinel_belongs_to_a_field_of_its_width(bits, wide, below):
    number = (1 << wide) - below
    assert parse.count(str(number), bits) == (None if wide >= bits and below < 3 else number)


@WIDTH
@pytest.mark.parametrize(
    "number", [1, 65533, 65534, 65535, 65536, 67043328, (63 << 26) + 1, LAST_JOB_ID], ids=hex
)
def test_an_id_has_no_sentinel(number):
    assert parse.job_id(str(number)) == number


@pytest.mark.case("T2")
@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "4294901760",
        "4294952826",
        "4294967294",
        "4294967295",
        "4294967296",
        "9" * 5000,
        "1_2",
        "",
        "N/A",
    ],
)
def test_what_is_no_id_of_a_job(text):
    with pytest.raises(SlurmFormatError):
        parse.job_id(text)


@pytest.mark.case("T2")
def test_nodes_and_the_client_agree_on_the_last_id():
    assert records.LAST_JOB_ID == LAST_JOB_ID


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:0", ExitStatus()),
        ("3:0", ExitStatus(3)),
        ("0:9", ExitStatus(0, 9)),
        ("137:0", ExitStatus(137)),
        # squeue 22.05 prints the wait status
        ("768", ExitStatus(3)),
        ("0", ExitStatus()),
        ("9", ExitStatus(0, 9)),
        ("15", ExitStatus(0, 15)),
        ("35072", ExitStatus(137)),
        ("(null)", ExitStatus()),
        ("", ExitStatus()),
        # the code counts only where no signal ended it, as in scontrol and sacct
        pytest.param("4021", ExitStatus(0, 53), marks=pytest.mark.case("P10")),
        pytest.param("139", ExitStatus(0, 11), marks=pytest.mark.case("P10")),
        pytest.param("-2", ExitStatus(), marks=pytest.mark.case("P10")),
        pytest.param("4294967294", ExitStatus(), marks=pytest.mark.case("P10")),
        pytest.param("4294967294:0", ExitStatus(), marks=pytest.mark.case("P10")),
        pytest.param("65280", ExitStatus(255), marks=WIDTH),
    ],
)
def test_exit_status(text, expected):
    assert parse.exit_status(text) == expected
    assert bool(parse.exit_status(text)) == (expected != ExitStatus())


@given(st.integers(0, 255), st.integers(0, 64))
def test_both_forms_of_an_exit_status_agree(code, signal):
    import os

    assert parse.exit_status(f"{code}:{signal}") == ExitStatus(code, signal)
    assert parse.exit_status(str(code << 8)) == ExitStatus(os.waitstatus_to_exitcode(code << 8))
    if signal:
        assert parse.exit_status(str(signal)).signal == -os.waitstatus_to_exitcode(signal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cpu=4,mem=4G,node=1,billing=4,gres/gpu=1",
            {"cpu": 4, "mem": 4 * G, "node": 1, "billing": 4, "gres/gpu": 1},
        ),
        (
            "billing=2,cpu=2,gres/gpu=4,mem=1000G,node=2",
            {"billing": 2, "cpu": 2, "gres/gpu": 4, "mem": 1000 * G, "node": 2},
        ),
        ("gres:gpu:4", {"gres/gpu": 4}),
        ("gres/gpu:4", {"gres/gpu": 4}),
        ("gres/gpu=4", {"gres/gpu": 4}),
        ("gres:gpu:a100:4", {"gres/gpu:a100": 4}),
        ("gres/gpu:a100:4", {"gres/gpu:a100": 4}),
        ("gres/gpu:a100=4", {"gres/gpu:a100": 4}),
        (
            "gres/gpu=6,gres/gpu:a100=4,gres/gpu:h100=2",
            {"gres/gpu": 6, "gres/gpu:a100": 4, "gres/gpu:h100": 2},
        ),
        ("gres:gpu", {"gres/gpu": 1}),
        ("gpu:8", {"gres/gpu": 8}),
        ("gpu:8(S:0-1)", {"gres/gpu": 8}),
        ("gpu:a100:8(S:0-1),nvme:2", {"gres/gpu:a100": 8, "gres/nvme": 2}),
        ("gpu:(null):2(IDX:0,3)", {"gres/gpu": 2}),
        ("gpu:a100.80gb:2", {"gres/gpu:a100.80gb": 2}),
        ("gpu:1g.10gb:7", {"gres/gpu:1g.10gb": 7}),
        ("gpu:3090:2", {"gres/gpu:3090": 2}),
        ("gres/gpu:2048", {"gres/gpu": 2048}),
        ("license/matlab=2,cpu=1", {"license/matlab": 2, "cpu": 1}),
        ("gres/shard:a100=4", {"gres/shard:a100": 4}),
        ("bandwidth:lustre:4G", {"gres/bandwidth:lustre": 4 * G}),
        ("cpu=1,mem=100", {"cpu": 1, "mem": 100 << 20}),
        pytest.param("cpu=65534,node=65535", {"cpu": 65534, "node": 65535}, marks=WIDTH),
        pytest.param("cpu=1,mem=8?,node=1", {"cpu": 1, "mem": 2**63 - 1, "node": 1}, marks=FAR),
        pytest.param("gres/gpu:18446744073709551613", {"gres/gpu": 2**63 - 1}, marks=FAR),
        pytest.param("cpu=1,mem=18446744073709551614", {"cpu": 1}, marks=WIDTH),
        ("(null)", {}),
        ("N/A", {}),
        ("", {}),
    ],
)
def test_tres(text, expected):
    assert parse.tres(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gres:gpu: 16", ({"gres/gpu": 16}, True)),
        ("gres/gpu:a100 : 2,cpu=4", ({"gres/gpu:a100": 2, "cpu": 4}, True)),
        ("gres:gpu:1,gres:gpu: 1", ({"gres/gpu": 2}, True)),
        ("gres:gpu:a&b:2,license/x=1", ({"license/x": 1}, False)),
        ("(null)", ({}, True)),
    ],
)
def test_what_a_user_typed_is_read_as_far_as_it_goes(text, expected):
    assert parse.requested(text) == expected


@given(st.text(max_size=40))
def test_nothing_that_a_user_types_keeps_a_job_from_being_listed(text):
    parse.requested(text)
    row = {"id": "7", "name": "x", "user": "u", "state": "PENDING", "tres_per_job": text}
    assert decode.JobDecoder().decode(row).id == 7


@pytest.mark.parametrize("text", ["=4", "gres/gpu=x", "cpu=1;mem=2", "cpu=-1"])
def test_tres_refuses(text):
    with pytest.raises(SlurmFormatError):
        parse.tres(text)


_TYPES = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)


@given(st.dictionaries(_TYPES, st.integers(1, 10**6), max_size=4))
def test_all_forms_of_gpus_agree(types):
    forms = [
        ",".join(f"{prefix}gpu{colon}{name}{equals}{count}" for name, count in types.items())
        for prefix, colon, equals in (
            ("gres:", ":", ":"),
            ("gres/", ":", "="),
            ("gres/", ":", ":"),
            ("", ":", ":"),
        )
    ]
    for form in forms:
        assert parse.tres(form) == {f"gres/gpu:{name}": count for name, count in types.items()}
        assert parse.tres(form).gpus == (sum(types.values()) if types else None)


@given(
    st.dictionaries(
        st.sampled_from(["cpu", "node", "billing", "gres/gpu", "gres/gpu:h100"]), st.integers(0, 10**9)
    )
)
def test_tres_behaves_as_a_dict(amounts):
    found = parse.tres(",".join(f"{name}={count}" for name, count in amounts.items()))
    assert found == amounts
    assert dict(found) == amounts
    assert hash(found) == hash(Tres(tuple(reversed(tuple(amounts.items())))))
    assert found.get("nothing") is None


@pytest.mark.parametrize(
    ("text", "state", "flags", "by"),
    [
        ("PENDING", JobState.PENDING, set(), None),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY, set(), None),
        ("CANCELLED by 1000", JobState.CANCELLED, set(), 1000),
        ("CANCELLED", JobState.CANCELLED, set(), None),
        ("COMPLETING", JobState.UNKNOWN, {JobFlag.COMPLETING}, None),
        ("COMPLETED+COMPLETING", JobState.COMPLETED, {JobFlag.COMPLETING}, None),
        ("CONFIGURING", JobState.RUNNING, {JobFlag.CONFIGURING}, None),
        ("SPECIAL_EXIT", JobState.PENDING, {JobFlag.SPECIAL_EXIT}, None),
        ("REQUEUED", JobState.UNKNOWN, {JobFlag.REQUEUED}, None),
        ("REQUEUE_HOLD", JobState.PENDING, {JobFlag.REQUEUE_HOLD}, None),
        ("STAGE_OUT", JobState.UNKNOWN, {JobFlag.STAGE_OUT}, None),
        ("SOMETHING_NEW", JobState.UNKNOWN, set(), None),
        ("", JobState.UNKNOWN, set(), None),
    ],
)
def test_job_state(text, state, flags, by):
    assert parse.job_state(text) == (state, flags, by)


@pytest.mark.parametrize("state", JobState)
def test_a_state_has_ended_or_not(state):
    still = {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}
    assert state.ended == (state not in still)


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("IDLE", NodeState.IDLE, set()),
        ("MIXED+PLANNED", NodeState.MIXED, {"PLANNED"}),
        ("IDLE+DRAIN", NodeState.IDLE, {"DRAIN"}),
        ("MIXED+DRAIN+NOT_RESPONDING", NodeState.MIXED, {"DRAIN", "NOT_RESPONDING"}),
        ("DOWN*", NodeState.DOWN, {"NOT_RESPONDING"}),
        ("DOWN*+DRAIN", NodeState.DOWN, {"NOT_RESPONDING", "DRAIN"}),
        ("idle~", NodeState.IDLE, {"POWERED_DOWN"}),
        ("mix-", NodeState.MIXED, {"PLANNED"}),
        ("drained", NodeState.IDLE, {"DRAIN"}),
        ("draining", NodeState.ALLOCATED, {"DRAIN"}),
        ("inval", NodeState.UNKNOWN, {"INVALID_REG"}),
        ("IDLE+SOMETHING_NEW", NodeState.IDLE, {"SOMETHING_NEW"}),
        ("", NodeState.UNKNOWN, set()),
    ],
)
def test_node_state(text, state, flags):
    assert parse.node_state(text) == (state, flags)


@pytest.mark.parametrize(
    ("text", "number", "pending"),
    [
        ("3", 3, None),
        ("0", 0, None),
        ("3-5%2", None, "3-5%2"),
        ("[3-5%2]", None, "3-5%2"),
        ("1,3,5-9", None, "1,3,5-9"),
        ("N/A", None, None),
        ("", None, None),
        ("4294967294", None, None),
        pytest.param("65534", 65534, None, marks=WIDTH),
        pytest.param("65535", 65535, None, marks=WIDTH),
    ],
)
def test_array_task(text, number, pending):
    assert parse.array_task(text) == (number, pending)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%j.out", "/home/u/slurm-17.out"),
        ("/logs/%x-%A_%a.log", "/logs/train-9_3.log"),
        ("%u/%4j.%N", "/home/u/user1/0017.n1"),
        ("%10a", "/home/u/0000000003"),
        ("100%%-%j", "/home/u/100%-17"),
        ("%j%", "/home/u/17%"),
        ("%q-%j", "/home/u/%q-17"),
        ("raw\\-%j", "/home/u/raw-%j"),
        (None, None),
        ("", None),
    ],
)
def test_expand_path(pattern, path):
    fields: dict[str, str | int | None] = {"j": 17, "A": 9, "a": 3, "x": "train", "u": "user1", "N": "n1"}
    assert parse.expand_path(pattern, fields, "/home/u") == path


def test_a_name_with_percent_signs_is_not_expanded_again():
    assert parse.expand_path("%x", {"x": "%j", "j": 5}, "/w") == "/w/%j"


@pytest.mark.parametrize(
    ("total", "requests", "gpus"),
    [
        ("cpu=1,gres/gpu=4", [], 4),
        ("cpu=1", [], 0),
        ("cpu=1", [("gres:gpu:4", 2)], 8),
        ("cpu=1", [("gres:gpu:4", None)], None),
        ("cpu=1", [("gres:gpu:4", None), ("gres/gpu:8", 1)], 8),
        ("", [("cpu=4", 2)], 0),
    ],
)
def test_gpus_are_zero_only_when_none_was_asked_for(total, requests, gpus):
    assert parse.gpus(parse.tres(total), [(parse.tres(text), times) for text, times in requests]) == gpus


def test_hosts():
    hosts = Hosts("n[1-3],m7")
    assert set(hosts) == {"n1", "n2", "n3", "m7"}
    assert len(hosts) == 4
    assert "n2" in hosts
    assert "n4" not in hosts
    assert str(hosts) == "n[1-3],m7"
    assert not parse.hosts("None assigned")
    assert not parse.hosts("(null)")
    assert list(Hosts("n[8-11]")) == ["n8", "n9", "n10", "n11"]


@FAR
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("n1", 1),
        ("n[1-3],m7", 4),
        ("rack[0-1]n[01-10]-ib", 20),
        ("a[1-100],b[1-100],c[1-100],d[1-100],e", 401),
        ("gpu-a100.lab.example,n[1,3-4]", 4),
    ],
)
def test_lists_of_nodes_are_read(text, count):
    assert len(parse.hosts(text)) == count


@FAR
@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n]",
        "n[3-1]",
        "n[a-b]",
        "n[0-99999999]",
        "n[0-999]m[0-999]k[0-999]",
        "n1,,n2",
        "n 1",
        "n[]",
        "\x1b[",
        "9" * 5000,
    ],
)
def test_what_is_no_list_of_nodes_is_refused(text):
    with pytest.raises(SlurmFormatError):
        parse.hosts(text)


@given(st.text(max_size=30))
def test_no_word_makes_a_state_fail(text):
    parse.job_state(text)
    parse.node_state(text)
    parse.array_task(text)


@pytest.mark.case("A2", "S1")
@given(st.text(max_size=30) | st.integers().map(str) | st.sampled_from(["9" * 5000, "²", "1-" * 5000]))
def test_what_is_not_understood_is_said_to_be_so(text):
    for read in (parse.tres, parse.memory, parse.count, parse.duration, parse.exit_status, parse.time):
        with contextlib.suppress(SlurmFormatError):
            read(text)
    with contextlib.suppress(SlurmFormatError):
        assert len(parse.hosts(text)) >= 0
    parse.array_task(text)
    parse.task_numbers(text)
    parse.requested(text)
    parse.job_state(f"CANCELLED by {text}")
    parse.expand_path(f"%{text}j", {"j": 1}, None)


@pytest.mark.parametrize(
    ("told", "restarts"),
    [
        ((0, 1), (0, 1)),
        ((1, 1), (0, 1)),
        ((0, 2, 2), (0, 1, 2)),
        ((1, 2, 2), (0, 1, 2)),
        ((0, 1, 0, 0, 1), (0, 1, 0, 0, 1)),  # ids begin again from the first at MaxJobId
        ((2, 3), (2, 3)),  # the rows before them are purged
    ],
)
def test_two_rows_with_one_number_are_attempts_of_their_own(told, restarts):
    begin = datetime(2026, 11, 23, tzinfo=timezone.utc)
    rows = [
        AccountingRecord(
            id=7,
            name="job",
            user="user1",
            state=JobState.COMPLETED,
            restarts=count,
            submitted=begin + timedelta(minutes=place),
        )
        for place, count in enumerate(told)
    ]
    found = decode.count_attempts(reversed(rows))
    assert [each.submitted for each in found] == [each.submitted for each in rows]
    assert tuple(each.restarts for each in found) == tuple(each.attempt for each in found) == restarts
