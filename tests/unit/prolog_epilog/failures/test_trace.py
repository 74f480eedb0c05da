"""Tracebacks out of logs as they really look."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.failures.text import LogText
from prolog_epilog.failures.trace import Raised, traces
from tests.properties import examples


def chains(text: str) -> list[tuple[Raised, ...]]:
    return traces(LogText.of("train.log", dedent(text).encode()))


def names(text: str) -> list[list[str]]:
    return [[raised.name for raised in chain] for chain in chains(text)]


PLAIN = """\
    Traceback (most recent call last):
      File "/home/u/train.py", line 12, in <module>
        main()
      File "/home/u/train.py", line 8, in main
        data = np.load(path)
    FileNotFoundError: [Errno 2] No such file or directory: 'x.npz'
"""


def test_a_traceback_has_its_type_its_message_and_its_frames():
    ((raised,),) = chains(PLAIN)
    assert (raised.type, raised.at.number, raised.first) == ("FileNotFoundError", 6, 0)
    assert raised.message == "[Errno 2] No such file or directory: 'x.npz'"
    assert [(frame.file, frame.line, frame.function, frame.source) for frame in raised.frames] == [
        ("/home/u/train.py", 12, "<module>", "main()"),
        ("/home/u/train.py", 8, "main", "data = np.load(path)"),
    ]
    assert not raised.bare


def test_progress_lines_in_between_belong_to_nobody():
    ((raised,),) = chains(
        """\
        Traceback (most recent call last):
        Epoch 7: 33%|######| 106/598 [40:10<50:24, 2.81it/s]
          File "train.py", line 12, in <module>
        step 8835 | loss 7.4850
            main()
        INFO trainer: 43 workers
          File "train.py", line 8, in main
        UserWarning: this setting is slower
            data = np.load(path)
        Epoch 7: 34%|######| 110/598 [40:10<50:24, 2.81it/s]
        ValueError: bad magic
        """
    )
    assert (raised.type, raised.message) == ("ValueError", "bad magic")
    assert [frame.source for frame in raised.frames] == ["main()", "data = np.load(path)"]


def test_ranks_that_write_through_each_other_are_read_apart():
    found = chains(
        """\
        [rank0]: Traceback (most recent call last):
        [rank1]: Traceback (most recent call last):
        [rank0]:   File "train.py", line 1, in a
        [rank1]:   File "train.py", line 2, in b
        [rank0]:     a()
        [rank1]:     b()
        [rank1]: KeyError: 'one'
        [rank0]: ValueError: zero
        """
    )
    assert [(chain[0].at.rank, chain[0].name, chain[0].frames[0].source) for chain in found] == [
        (1, "KeyError", "b()"),
        (0, "ValueError", "a()"),
    ]


@pytest.mark.parametrize(
    "prefix",
    ["", "3: ", "[rank3]: ", "[1,3]<stderr>:", "[default3]:", "0: [rank0]: ", "(main pid=77) ", "n17: "],
)
def test_prefixes_of_launchers_are_no_part_of_it(prefix):
    text = "".join(prefix + line + "\n" for line in dedent(PLAIN).splitlines())
    ((raised,),) = traces(LogText.of("x", text.encode()))
    assert raised.name == "FileNotFoundError"
    assert [frame.function for frame in raised.frames] == ["<module>", "main"]
    assert raised.frames[1].source == "data = np.load(path)"


@pytest.mark.parametrize(
    ("words", "link"),
    [
        ("During handling of the above exception, another exception occurred:", "context"),
        ("The above exception was the direct cause of the following exception:", "cause"),
    ],
)
def test_chained_exceptions_are_one_chain(words, link):
    (chain,) = chains(
        f"""\
        Traceback (most recent call last):
          File "a.py", line 1, in f
            g()
        KeyError: 'a'

        {words}

        Traceback (most recent call last):
          File "a.py", line 3, in h
            f()
        RuntimeError: no a
        """
    )
    assert [(raised.name, raised.link) for raised in chain] == [("KeyError", ""), ("RuntimeError", link)]


def test_a_data_loader_worker_has_its_own_traceback_within():
    (chain,) = chains(
        """\
        Traceback (most recent call last):
          File "train.py", line 1, in f
            for batch in loader:
        ValueError: Caught ValueError in DataLoader worker process 0.
        Original Traceback (most recent call last):
          File "worker.py", line 1, in fetch
            x = self.dataset[i]
        ValueError: bad record 7
        """
    )
    assert [(raised.message, raised.wrapper, raised.link) for raised in chain] == [
        ("Caught ValueError in DataLoader worker process 0.", True, ""),
        ("bad record 7", False, "inner"),
    ]


def test_a_remote_traceback_in_quotes_comes_first():
    (chain,) = chains(
        '''\
        multiprocessing.pool.RemoteTraceback:
        """
        Traceback (most recent call last):
          File "pool.py", line 1, in worker
            result = func(x)
        ZeroDivisionError: division by zero
        """

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "main.py", line 1, in <module>
            pool.map(f, xs)
        ZeroDivisionError: division by zero
        '''
    )[-1:]
    assert [raised.name for raised in chain] == ["ZeroDivisionError", "ZeroDivisionError"]
    assert chain[0].frames[0].file == "pool.py"


def test_rays_task_error_wraps_the_task_s_own():
    (chain,) = chains(
        """\
        Traceback (most recent call last):
          File "main.py", line 1, in <module>
            ray.get(f.remote())
        ray.exceptions.RayTaskError(ValueError): ray::f() (pid=12, ip=10.0.0.3)
          File "task.py", line 2, in f
            raise ValueError("bad")
        ValueError: bad
        """
    )
    assert [(raised.wrapper, raised.link) for raised in chain] == [(True, ""), (False, "inner")]


def test_exception_groups_are_read_through_their_bars():
    found = names(
        """\
          + Exception Group Traceback (most recent call last):
          |   File "a.py", line 1, in <module>
          |     main()
          | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
          +-+---------------- 1 ----------------
            | Traceback (most recent call last):
            |   File "a.py", line 9, in task
            |     x = d["k"]
            | KeyError: 'k'
            +------------------------------------
        """
    )
    assert ["KeyError"] in found


def test_rich_s_box_is_read():
    found = chains(
        """\
        ╭───────────────────── Traceback (most recent call last) ──────────────────────╮
        │ /home/u/train.py:12 in main                                                  │
        │                                                                              │
        │   11 │                                                                       │
        │ ❱ 12 │   torch.save(state, path)                                             │
        │   13 │                                                                       │
        ╰──────────────────────────────────────────────────────────────────────────────╯
        OSError: [Errno 28] No space left on device
        """
    )
    raised = found[-1][-1]
    assert (raised.name, raised.frames[0].function) == ("OSError", "main")
    assert "torch.save" in raised.frames[0].source


def test_ipython_s_form_is_read():
    found = chains(
        """\
        CuDNNError                                Traceback (most recent call last)
        <ipython-input-1-67433e> in <module>
        ----> 1 z = l1(y)
        /opt/site-packages/chainer/function_node.py in apply(self, inputs)
        --> 268             tensor_core=tensor_core)
        CuDNNError: CUDNN_STATUS_NOT_SUPPORTED
        """
    )
    raised = found[-1][-1]
    assert (raised.name, raised.message) == ("CuDNNError", "CUDNN_STATUS_NOT_SUPPORTED")
    assert raised.frames[-1].source == "tensor_core=tensor_core)"


def test_a_syntax_error_has_no_frame_of_its_own_line():
    ((raised,),) = chains(
        """\
          File "train.py", line 3
            def f(
                 ^
        SyntaxError: '(' was never closed
        """
    )
    assert (raised.name, raised.frames[0].file, raised.frames[0].function) == ("SyntaxError", "train.py", "")


def test_one_that_was_cut_off_has_no_type():
    ((raised,),) = chains(
        """\
        Traceback (most recent call last):
          File "train.py", line 3, in main
            f()
        """
    )
    assert (raised.type, len(raised.frames), raised.at.number) == ("", 1, 2)


def test_a_start_that_was_cut_off_does_no_harm():
    ((raised,),) = chains(
        """\
          File "train.py", line 3, in main
            f()
        RuntimeError: late
        """
    )
    assert (raised.name, raised.bare) == ("RuntimeError", False)


def test_an_exception_without_a_traceback_is_bare():
    ((raised,),) = chains("OSError: [Errno 5] Input/output error: '/data/x'\n")
    assert (raised.name, raised.bare) == ("OSError", True)


def test_the_next_lines_of_a_message_are_of_it():
    ((raised,),) = chains(
        """\
        Traceback (most recent call last):
          File "train.py", line 3, in main
            f()
        RuntimeError: Error(s) in loading state_dict for Net:
        \tMissing key(s) in state_dict: "a.weight".
        step 3 | loss 2
        """
    )
    assert raised.message.splitlines() == [
        "Error(s) in loading state_dict for Net:",
        'Missing key(s) in state_dict: "a.weight".',
    ]


@pytest.mark.parametrize(
    "line",
    [
        "INFO: training starts",
        "Epoch 3: 12%|#  | 1/9",
        "UserWarning: this setting is slower",
        "val_error: 0.3",
        "Error: 0",
        "http://host/Exception: fine",
        "TypeErrors seen so far: 0",
    ],
)
def test_what_only_looks_like_an_exception_is_none(line):
    assert chains(line + "\n") == []


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", True),
        (
            "subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.",
            True,
        ),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", True),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
            True,
        ),
        ("ValueError: x", False),
    ],
)
def test_a_launcher_s_own_traceback_is_known(line, launcher):
    ((raised,),) = chains(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n' + line + "\n"
    )
    assert raised.launcher is launcher


def test_a_huge_log_of_hits_is_bounded():
    text = LogText.of("x", b"ValueError: x\n" * 400_000 + b"KeyError: 'last'\n")
    found = traces(text)
    assert len(found) < 20_000
    assert found[-1][0].name == "KeyError"


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 200))
def test_any_bytes_between_the_parts_raise_nothing(noise, at):
    whole = dedent(PLAIN).encode()
    traces(LogText.of("x", whole[:at] + noise + whole[at:]))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "    g()",
                "ValueError: x",
                "During handling of the above exception, another exception occurred:",
                "| ",
                "  | ",
                "│ a.py:1 in f │",
                "-- Process 0 terminated with the following error:",
                "ImportError: Traceback (most recent call last):",
                "",
                "step 3",
            ]
        ),
        max_size=60,
    )
)
def test_parts_in_any_order_are_read_in_order(parts):
    found = traces(LogText.of("x", "\n".join(parts).encode()))
    assert all(raised.first <= raised.at.index for chain in found for raised in chain)
    assert len({raised.at.index for chain in found for raised in chain if raised.type}) == sum(
        bool(raised.type) for chain in found for raised in chain
    )
