"""Each branch of the shim's Lua is taken by a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.slurm_plugins.lua.branches import TABLE, Branch, Instrumenter, format_table, run_tests

LUA = """\
-- a file
local word = "if x then" -- for a while
for index = 1, 2 do
  if word and index == 1 or not word then
    word = nil
  end
end
while true do
  return function() end
end
"""


def test_branches_are_found(tmp_path: Path) -> None:
    made = Instrumenter("x.lua", LUA, tmp_path / "record")
    assert made.branches == [
        Branch("x.lua", 3, "for", "body"),
        Branch("x.lua", 3, "for", "left"),
        Branch("x.lua", 4, "if", "holds"),
        Branch("x.lua", 4, "if", "does not"),
        Branch("x.lua", 4, "and", "right"),
        Branch("x.lua", 4, "or", "right"),
        Branch("x.lua", 8, "while", "holds"),
    ]
    assert made.text.count("\n") == LUA.count("\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.root
def test_each_branch_is_taken_by_a_test(tmp_path: Path) -> None:
    branches, taken = run_tests(tmp_path)
    assert [str(branch) for branch in branches if branch not in taken] == []
    listed = [line.split(" | ")[:4] for line in TABLE.read_text().splitlines() if ".lua |" in line]
    expected = [
        line.split(" | ")[:4] for line in format_table(branches, taken).splitlines() if ".lua |" in line
    ]
    assert listed == expected, f"{TABLE.name} is of another state: python -m {run_tests.__module__}"
