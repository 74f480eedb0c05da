"""The table of coverage by package, and its place in a page."""

from __future__ import annotations

from tests.coverage_report import BEGIN, END, Module, format_table, replace_section

MODULES = [Module("gsub/a.py", 10, 9), Module("gsub/b.py", 10, 10), Module("profiler/store/c.py", 0, 0)]


def test_modules_are_added_up_by_package() -> None:
    whole = [Module(each.path, each.statements, each.statements) for each in MODULES]
    assert format_table({"`make test`": MODULES, "all": whole}).splitlines() == [
        "| package | statements | `make test` | all |",
        "|---|---:|---:|---:|",
        "| gsub | 20 | 95.0 % | 100.0 % |",
        "| profiler/store | 0 | 100.0 % | 100.0 % |",
        "| all | 20 | 95.0 % | 100.0 % |",
    ]


def test_a_section_is_replaced_and_the_rest_of_the_page_stays() -> None:
    page = f"# Tests\n{BEGIN}old\n{END}## More\n"
    assert replace_section(page, "new\n") == f"# Tests\n{BEGIN}new\n{END}## More\n"


def test_a_page_without_the_section_gets_it_at_its_end() -> None:
    page = replace_section("# Tests\n", "new\n")
    assert page == f"# Tests\n\n## Coverage\n\n{BEGIN}new\n{END}"
    assert replace_section(page, "newer\n") == page.replace("new\n", "newer\n")
