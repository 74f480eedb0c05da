"""Splitting Slurm's tables, whatever stands in the fields."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.client import inventory
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.tables import Separator, dropped_fields, rows, scontrol_records

HOSTILE = [
    "",
    " ",
    "a|b",
    "a\nb",
    "\n",
    "x=y JobId=5 ",
    "\x1f",
    "é\udcff",
    "%j",
    ":.20",
    "\\",
    "(null)",
    "a\x1fb\x1f",
]


@pytest.mark.parametrize("comment", HOSTILE)
@pytest.mark.parametrize("name", HOSTILE)
def test_fields_come_back_as_they_were(name, comment):
    separator = Separator()
    output = "".join(
        f"{number}{separator.text}{name}{separator.text}{comment}{separator.text}\n" for number in (1, 2)
    )
    assert list(rows(output, separator, ("id", "name", "comment"))) == [
        {"id": "1", "name": name, "comment": comment},
        {"id": "2", "name": name, "comment": comment},
    ]


@given(st.lists(st.tuples(st.integers(1), st.text(), st.text()), max_size=5))
def test_any_text_comes_back(jobs):
    separator = Separator()
    output = "".join("".join(f"{field}{separator.text}" for field in job) + "\n" for job in jobs)
    assert [tuple(row.values()) for row in rows(output, separator, ("id", "name", "comment"))] == [
        (str(number), name, comment) for number, name, comment in jobs
    ]


def test_each_call_has_its_own_separator():
    assert len({Separator().text for _ in range(100)}) == 100


@pytest.mark.parametrize("output", ["1{s}a{s}\n2{s}\n", "1{s}a", "squeue: what?\n", "1{s}a{s}\nrest"])
def test_uneven_fields_are_no_answer(output):
    separator = Separator()
    with pytest.raises(SlurmFormatError):
        list(rows(output.format(s=separator.text), separator, ("id", "name")))


def test_nothing_is_an_answer():
    assert list(rows("", Separator(), ("id", "name"))) == []


def test_fields_that_squeue_dropped_are_found():
    stderr = "".join(
        f"squeue: error: Invalid job format specification: {name}\n" for name in ("ExcNodes", "X")
    )
    assert dropped_fields(stderr) == {"ExcNodes", "X"}


NODE = "NodeName=n8 Arch=x86_64 State=IDLE+DRAIN OS=Linux 6.1 #1 SMP Gres=gpu:4 AveWatts=0  "
TEXTS = ("Reason", "Comment", "Extra")


@pytest.mark.parametrize(
    ("tail", "reason", "comment", "extra"),
    [
        ("", None, None, None),
        ("Reason=bad fan [root@1795236875]", "bad fan", None, None),
        (
            "Reason=bad | gpu State=IDLE Gres=gpu:99 [root@1795236875]",
            "bad | gpu State=IDLE Gres=gpu:99",
            None,
            None,
        ),
        ("Comment=hi NodeName=n9 Gres=gpu:0", None, "hi NodeName=n9 Gres=gpu:0", None),
        (
            "Reason=r [root@1795236875] Comment=hi Reason=foo bar Extra=ex=1 2",
            "r",
            "hi Reason=foo bar",
            "ex=1 2",
        ),
        ("Reason=two\nlines [root@1795236875] Extra=x", "two\nlines", None, "x"),
    ],
)
def test_what_admins_write_on_a_node_never_damages_a_fact(tail, reason, comment, extra):
    (row,) = scontrol_records(NODE + tail + "\n", "NodeName", TEXTS)
    node = inventory.node(row)
    assert (node.name, node.gpus, node.flags) == ("n8", 4, frozenset({"DRAIN"}))
    assert (node.reason, node.comment, node.extra) == (reason, comment, extra)
    if reason:
        assert node.reason_by == "root"
        assert node.reason_at == datetime.fromtimestamp(1795236875, timezone.utc)


def test_records_that_start_otherwise_are_no_answer():
    with pytest.raises(SlurmFormatError):
        list(scontrol_records("No nodes in the system\n", "NodeName", TEXTS))
