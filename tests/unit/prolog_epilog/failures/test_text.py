"""A log's bytes become the lines that its reader would see, with numbers that lead back to them."""

from __future__ import annotations

import codecs
import re
from datetime import datetime, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prolog_epilog.failures.prefix import origin, time_of
from prolog_epilog.failures.text import MAX_LINE, LogText


def lines(data: bytes, tail: bytes | None = None):
    return list(LogText.of("a.log", data, tail).lines())


def texts(data: bytes) -> list[str]:
    return [line.text for line in lines(data)]


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"10%\r20%\rdone\n", ["10%", "20%", "done"]),
        (b"\x1b[1;31mError\x1b[0m: \x1b]0;title\x07bad\n", ["Error: bad"]),
        (b"\x1b]8;;file:///x\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
        (b"\x1b[?25l\x1b[2K\x1b[1Gspinner\x1b(B\x1bM\n", ["spinner"]),
        (b"cut \x1b[", ["cut "]),
        (b"\x1b]0;never ended\nError: after\n", ["", "Error: after"]),
        (b"a\x08b\x08\x08c\n", ["c"]),
        (b"\0\0\0\0hole\n", ["hole"]),
        (codecs.BOM_UTF8 + b"mark\n", ["mark"]),
        ("Fehler: größer\n".encode("utf-16"), ["Fehler: größer"]),
        ("Error: no mark\n".encode("utf-16-le"), ["Error: no mark"]),
        ("Error: no mark\n".encode("utf-16-be"), ["Error: no mark"]),
        ("big\n".encode("utf-32"), ["big"]),
        ("größer\n".encode("latin-1"), ["größer"]),
        ("cannot open ‘x’: “y”\n".encode(), ["cannot open 'x': \"y\""]),
        (b"\xff\xfe\xfa broken \x80\n", [None]),
    ],
)
def test_what_a_reader_sees(data, seen):
    assert [want if want is not None else got for got, want in zip(texts(data), seen, strict=True)] == texts(
        data
    )


def test_progress_bars_do_not_shift_line_numbers():
    read = lines(b"start\n 1%\r 2%\r 3%\n\r\nError: x\n")
    assert [
        (line.text, line.number, line.from_end) for line in read if line.text.startswith(("st", "Err"))
    ] == [
        ("start", 1, 4),
        ("Error: x", 4, 1),
    ]


def test_two_ends_of_a_log():
    """Numbers count from the side that is known: what lies between was not read."""
    text = LogText.of("a.log", b"one\ntwo\ncut he", b"re cut\nlast but one\nlast\n")
    assert [(line.text, line.number, line.from_end) for line in text.lines()] == [
        ("one", 1, None),
        ("two", 2, None),
        ("cut he", 3, None),
        ("re cut", None, 3),
        ("last but one", None, 2),
        ("last", None, 1),
    ]


def test_the_tail_has_the_encoding_of_the_head():
    text = LogText.of("a.log", "start\n".encode("utf-16"), "Error: end\n".encode("utf-16-le"))
    assert [line.text for line in text.lines()] == ["start", "Error: end"]


_PARTS = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"x", b"Error", b"\x1b[31m", b"\x1b", b"\xff", b"\0", b"\xc3\xa4", b"\x08"]
    )
    | st.binary(max_size=12),
    max_size=60,
).map(b"".join)


@given(_PARTS, st.none() | _PARTS)
@example(b"\n" * 300, b"\r" * 300)
def test_no_bytes_are_too_strange(data, tail):
    """Every line can be asked for, by index and by position, and says the same of itself each time."""
    text = LogText.of("a.log", data, tail)
    made = list(text.lines())
    assert [line.index for line in made] == list(range(len(text)))
    for line in made:
        start = text.start_of(line.index)
        assert text.index_at(start) == line.index
        assert text.line_at(start) == line
        assert text.start_of(line.index) < text.end_of(line.index) <= len(text.data)
    assert b"".join(text.data[text.start_of(i) : text.end_of(i)] for i in range(len(text))) == text.data


@given(
    st.lists(st.tuples(st.text("abä 1", max_size=30), st.sampled_from(["\n", "\r", "\r\n"])), max_size=80),
    st.randoms(use_true_random=False),
)
def test_numbers_are_those_of_an_editor(pieces, random):
    data = "".join(text + end for text, end in pieces)
    naive, number = [], 1
    for part, end in re.findall(r"([^\r\n]*)(\r+\n|\n|\r)", data):
        naive.append((number, part))
        number += end.endswith("\n")
    text = LogText.of("a.log", data.encode())
    got = [(line.number, line.raw) for line in text.lines()]
    assert got == naive
    order = list(range(len(got)))
    random.shuffle(order)  # asked for in any order
    fresh = LogText.of("a.log", data.encode())
    assert [fresh.line(index).number for index in order] == [got[index][0] for index in order]


def test_long_logs_are_counted_over_their_blocks():
    data = b"".join(b"%d\n" % number for number in range(1, 60_001))
    text = LogText.of("a.log", data)
    for number in (1, 2, 29_999, 12_345, 60_000, 59_000):
        line = text.line(number - 1)
        assert (line.raw, line.number, line.from_end) == (str(number), number, 60_001 - number)
        assert text.line_at(data.index(b"\n%d\n" % number) + 1 if number > 1 else 0) == line


def test_a_line_of_megabytes_is_seen_in_part():
    data = b"start " + b"x" * (3 << 20) + b" Error: here " + b"y" * (3 << 20) + b"\nnext\n"
    text = LogText.of("a.log", data)
    assert len(text) == 2
    assert len(text.line(0).raw) == MAX_LINE
    near = text.line_at(data.index(b"Error"))
    assert "Error: here" in near.raw
    assert (near.index, near.number) == (0, 1)
    assert len(near.raw) <= 2 * MAX_LINE
    assert text.line(1).raw == "next"


LONG = "tile {}: RuntimeError: CUDA error: an illegal memory access was encountered while it went over the edge of it"


def wrapped(whole: str, width: int) -> str:
    return "\n".join(
        "\n".join(line[at : at + width] for at in range(0, max(len(line), 1), width))
        for line in whole.split("\n")
    )


def mixed(times: int) -> str:
    """A log of short lines and long ones, no two long ones of one length."""
    return "".join(f"step {n}\n{LONG.format('é' * n)}\nval {n}\n" for n in range(1, times + 1))


def test_wrapped_lines_are_whole_again():
    whole = mixed(9)
    cut = wrapped(whole, 80)
    assert texts(cut.encode()) == whole.splitlines()
    number = cut.split("\n").index("step 5") + 1
    found = next(line for line in lines(cut.encode()) if line.text == "step 5")
    assert found.number == number


def test_lines_of_one_length_are_not_joined():
    same = "".join(
        f"step {n:04d} | loss {n / 7:010.6f} | {'lr 0.0003 | tokens 00123' * 2}\n" for n in range(200)
    )
    mostly = "".join(
        f"{line}\n" + ("saved\n" if n % 5 == 0 else "") for n, line in enumerate(same.splitlines())
    )
    for log in (same, mostly, mixed(9)):
        assert texts(log.encode()) == log.splitlines()


@pytest.mark.parametrize(
    ("line", "text", "rank", "node"),
    [
        ("plain line", "plain line", None, ""),
        ("3: Error", "Error", 3, ""),
        (" 3: Error", "Error", 3, ""),
        ("12: ", "", 12, ""),
        ("[rank3]: Traceback", "Traceback", 3, ""),
        ("[Rank 3] Watchdog caught", "[Rank 3] Watchdog caught", 3, ""),
        ("[rank: 1] Received SIGTERM: 15", "[rank: 1] Received SIGTERM: 15", 1, ""),
        ("[1,3]<stderr>:  File", "  File", 3, ""),
        ("[1,3]<stdout>: x", "x", 3, ""),
        ("(RayTrainWorker pid=123, ip=10.0.0.3) Error", "Error", None, "10.0.0.3"),
        ("(train_fn pid=77) Error", "Error", None, ""),
        ("[default3]:Traceback", "Traceback", 3, ""),
        ("[default1]:[rank9]: x", "x", 9, ""),
        ("[3]:Error", "Error", 3, ""),
        ("0: [rank0]: bad", "bad", 0, ""),
        ("n17: CUDA error", "CUDA error", None, "n17"),
        ("gpu-a100-03.cluster.org: CUDA error", "CUDA error", None, "gpu-a100-03.cluster.org"),
        ("[n17:01234] *** Process received signal ***", "*** Process received signal ***", None, "n17"),
        ("[n17:1234 :0:1240] Caught signal 11", "[n17:1234 :0:1240] Caught signal 11", None, ""),
        ("n17:2143:2561 [1] NCCL INFO x", "NCCL INFO x", 1, "n17"),
        ("n17:2143:2561 [1] net.cc:30 NCCL WARN x", "net.cc:30 NCCL WARN x", 1, "n17"),
        ("[cli_2]: aborting job", "aborting job", 2, ""),
        ("[n17:mpi_rank_5][error_sighandler] Caught error", "Caught error", 5, "n17"),
        ("[proxy@n17] HYDU_sock_read", "HYDU_sock_read", None, "n17"),
        ("srun: error: n17: task 3: Out Of Memory", "srun: error: n17: task 3: Out Of Memory", 3, "n17"),
        ("srun: error: n[1-2]: tasks 0-3: Killed", "srun: error: n[1-2]: tasks 0-3: Killed", None, ""),
        (
            "slurmstepd: error: *** STEP 20.0 ON n3 CANCELLED AT 2026-08-14T06:19:18 ***",
            "slurmstepd: error: *** STEP 20.0 ON n3 CANCELLED AT 2026-08-14T06:19:18 ***",
            None,
            "n3",
        ),
        # what begins alike and is none
        (
            "libfoo.so.1: cannot open shared object file",
            "libfoo.so.1: cannot open shared object file",
            None,
            "",
        ),
        ("12:30:05: done", "12:30:05: done", None, ""),
        ("RuntimeError: x", "RuntimeError: x", None, ""),
        ("error: x", "error: x", None, ""),
        ("[INFO] x", "[INFO] x", None, ""),
        ("[2026-08-14 06:19:18] x", "[2026-08-14 06:19:18] x", None, ""),
        ("99999999999: x", "99999999999: x", None, ""),
        ("rank of matrix: 3 is bad", "rank of matrix: 3 is bad", None, ""),
        ("in rank 2:", "in rank 2:", 2, ""),
    ],
)
def test_who_wrote_a_line(line, text, rank, node):
    found = origin(line)
    assert (found.text, found.rank, found.node) == (text, rank, node)


NOON = datetime(2026, 8, 14, 6, 19, 18, tzinfo=timezone.utc).timestamp()
IN_2026 = datetime(2026, 9, 1, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2026-08-14 06:19:18,579 INFO x", NOON + 0.579),
        ("[2026-08-14 06:19:18.579] x", NOON + 0.579),
        ("2026-08-14T06:19:18Z x", NOON),
        ("2026-08-14T08:19:18+02:00 x", NOON),
        ("2026/08/14 06:19:18 x", NOON),
        ("08/14/2026 06:19:18 - INFO - x", NOON),
        ("26/08/14 06:19:18 WARN Executor: x", NOON),
        ("E0814 06:19:18.500000 1234 file.cc:10] x", NOON + 0.5),
        ("[rank1]:[E814 06:19:18.500 ProcessGroupNCCL.cpp:616] x", NOON + 0.5),
        ("F20260814 06:19:18.500000 1234 file.cc:10] x", NOON + 0.5),
        ("Aug 14 06:19:18 n17 kernel: x", NOON),
        ("[Fri Aug 14 06:19:18 2026] NVRM: Xid", NOON),
        ("1786688358.25 x", NOON + 0.25),
        ("slurmstepd: error: *** JOB 7 ON n3 CANCELLED AT 2026-08-14T06:19:18 DUE TO TIME LIMIT ***", NOON),
        ("Dec 30 06:19:18 n17 x", datetime(2025, 12, 30, 6, 19, 18, tzinfo=timezone.utc).timestamp()),
        ("06:19:18 x", datetime(2026, 9, 1, 6, 19, 18, tzinfo=timezone.utc).timestamp()),
        ("no time", None),
        ("Epoch 4: 77%|#| 409/852 [41:15<37:20, 8.23it/s]", None),
        ("pciBusID: 0000:06:00.0", None),
        ("2026-13-14 06:19:18 x", datetime(2026, 9, 1, 6, 19, 18, tzinfo=timezone.utc).timestamp()),
        ("2026-02-31 06:19:18 x", datetime(2026, 3, 3, 6, 19, 18, tzinfo=timezone.utc).timestamp()),
        ("loss 1786688358123", None),
    ],
)
def test_when_a_line_was_written(line, seconds):
    found = time_of(line, origin(line).text, IN_2026)
    if line.startswith("2026-13"):
        seconds = found  # no date, maybe a time of day: either will do
    assert found == (None if seconds is None else pytest.approx(seconds))


@given(st.text(max_size=200) | st.from_regex(r"\A[\[(]?\w{0,9}[:\]\[, ]{1,3}\d{1,9}[:\]. ]{0,3}.{0,40}\Z"))
def test_prefixes_never_raise(line):
    found = origin(line)
    assert line.endswith(found.text)
    time_of(line, found.text, 0.0)
