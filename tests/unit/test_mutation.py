"""The mutation check: which expressions it changes, and which tests it has try them."""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.mutation import Contexts, Finder, Mutation

SOURCE = '''\
"""A text of 3 lines."""
LIMIT: int = 3


def is_near(a: int, b: float = 1.5) -> bool:
    """A text."""
    if a < LIMIT and not b:
        raise ValueError("no more than 4", 5)
    print("of 6", 7)
    return (
        a + 2 >= b
    )


def name(texts):
    return "x" + texts[0]
'''


def find() -> list[Mutation]:
    finder = Finder("gsub/near.py")
    finder.visit(ast.parse(SOURCE))
    return sorted(finder.found)


def test_expressions_are_changed_and_texts_are_not() -> None:
    source = SOURCE.encode()
    assert [(each.line, each.original(source), each.alternatives) for each in find()] == [
        (2, "3", ("4",)),
        (5, "1.5", ("2.5",)),
        (7, "a < LIMIT", ("a <= LIMIT", "a >= LIMIT")),
        (7, "a < LIMIT and not b", ("a < LIMIT or not b",)),
        (7, "not b", ("b",)),
        (11, "a + 2", ("a - 2",)),
        (11, "a + 2 >= b", ("a + 2 > b", "a + 2 < b")),
        (11, "a + 2 >= b", ("not a + 2 >= b",)),
        (11, "2", ("3",)),
        (16, '"x" + texts[0]', ("None",)),
        (16, "0", ("1",)),
    ]


def test_a_mutant_is_the_source_but_for_one_expression_on_the_same_lines() -> None:
    source = SOURCE.encode()
    for mutation in find():
        for text in mutation.alternatives:
            mutant = mutation.apply(source, text)
            assert mutant.count(b"\n") == source.count(b"\n")
            changed = [
                number
                for number, (old, new) in enumerate(
                    zip(source.splitlines(), mutant.splitlines(), strict=True), 1
                )
                if old != new
            ]
            assert changed == [mutation.line]
            assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))


def test_tests_of_the_same_folder_come_first_one_of_each_function_the_fastest_first() -> None:
    tests = {
        "tests/unit/gsub/test_near.py::test_a[1]": 3.0,
        "tests/unit/gsub/test_near.py::test_a[2]": 4.0,
        "tests/unit/gsub/test_other.py::test_b": 0.1,
        "tests/unit/profiler/test_c.py::test_c": 0.01,
        "tests/slurm/essential/test_d.py::test_d": 0.01,
    }
    contexts = Contexts({"gsub/near.py": {7: set(tests)}}, {"gsub/near.py": {7}}, tests)
    mutation = next(each for each in find() if each.line == 7)
    assert contexts.is_executed(mutation)
    assert [test.rpartition("::")[2] for test in contexts.order(mutation)] == [
        "test_a[1]",
        "test_b",
        "test_c",
        "test_a[2]",
        "test_d",
    ]


def test_a_line_of_a_module_is_tried_by_the_tests_of_its_functions() -> None:
    contexts = Contexts({"gsub/near.py": {7: {"a"}, 10: {"b"}}}, {"gsub/near.py": {2, 7, 10}})
    limit, *_ = find()
    assert limit.line == 2
    assert contexts.covering(limit) == {"a", "b"}
    other = next(each for each in find() if each.line == 16)
    assert not contexts.is_executed(other)


def test_a_file_that_nothing_runs_has_no_tests(tmp_path: Path) -> None:
    assert not Contexts().is_executed(find()[0])
