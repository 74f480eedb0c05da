"""A site's own stages: found where they are installed, in their place, and unable to hurt the others."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.paths import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from slurm_plugins.decide import pipeline, plugins
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stage import NO_PROPOSAL, Stage
from tests.unit.slurm_plugins.decide.cluster import context, inventory, nodes, partition

EXAMPLE = REPOSITORY / "examples/site_stage"
GUIDE = REPOSITORY / "docs/site-stages.md"


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder of installed packages that Python looks into; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def install(folder: Path, name: str, points: dict[str, str], modules: dict[str, str]) -> None:
    """As pip leaves a package behind: its modules, and a .dist-info with its entry points."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[gsub.stages]\n{lines}")


class First(Stage):
    """Stands for one of gsub's."""

    name = "first"

    def decide(self, request, context):
        return NO_PROPOSAL


class Limits(First):
    """Stands for gsub's last."""

    name = "limits"


GOOD = """
from slurm_plugins.decide.stage import NO_PROPOSAL, Change, Proposal, Stage

class Good(Stage):
    name = "good"
    def decide(self, request, context):
        return Proposal((Change("prefer", None, "v100", "a reason"),))

class Also(Good):
    name = "also_good"

class Takes(Good):
    name = "limits"

class Nameless(Stage):
    def decide(self, request, context):
        return NO_PROPOSAL

class Shouts(Good):
    name = "Night Queue"

class Abstract(Stage):
    name = "abstract"

class Raises(Good):
    name = "raises"
    def __init__(self):
        raise RuntimeError("no licence\\x1b[31m")

function = len
"""


def test_what_is_installed_is_found_and_runs_by_name(installed):
    install(
        installed, "mysite", {"b": "mysite_stages:Good", "a": "mysite_stages:Also"}, {"mysite_stages": GOOD}
    )
    stages, problems = plugins.load()
    assert [stage.name for stage in stages] == ["also_good", "good"]
    assert problems == ()


BROKEN = {
    "no such module": ("nowhere_at_all:Stage", "ModuleNotFoundError"),
    "no such class": ("mysite_stages:Missing", "AttributeError"),
    "not a class": ("mysite_stages:function", "want a class"),
    "another class": ("decimal:Decimal", "want a class"),
    "abstract": ("mysite_stages:Abstract", "abstract"),
    "without a name": ("mysite_stages:Nameless", "want name"),
    "a name that is none": ("mysite_stages:Shouts", "want name"),
    "one of ours": ("mysite_stages:Takes", "another stage called limits"),
    "raises when made": ("mysite_stages:Raises", "RuntimeError: no licence"),
    "raises when imported": ("mysite_raises:Good", "ZeroDivisionError"),
    "leaves when imported": ("mysite_leaves:Good", "SystemExit"),
    "is no Python": ("mysite_syntax:Good", "SyntaxError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_reported_and_the_others_run(installed, name):
    value, why = BROKEN[name]
    install(
        installed,
        "mysite",
        {"works": "mysite_stages:Good", "broken": value},
        {
            "mysite_stages": GOOD,
            "mysite_raises": "1 / 0",
            "mysite_leaves": "import sys; sys.exit(3)",
            "mysite_syntax": "def",
        },
    )
    stages, problems = plugins.load(taken=["limits"])
    assert [stage.name for stage in stages] == ["good"]
    assert len(problems) == 1
    assert problems[0].startswith(f"stage broken ({value}) is left out: ")
    assert why in problems[0]
    assert problems[0].isprintable()


def test_of_two_with_one_name_the_first_entry_counts():
    points = [EntryPoint(name, "slurm_plugins_test:First", plugins.GROUP) for name in ("z", "a")]
    module = type(sys)("slurm_plugins_test")
    module.First = First  # type: ignore[attr-defined]
    sys.modules["slurm_plugins_test"] = module
    try:
        stages, problems = plugins.load(found=points)
    finally:
        del sys.modules["slurm_plugins_test"]
    assert len(stages) == 1
    assert len(problems) == 1 and problems[0].startswith("stage z ")


def test_the_sites_stages_run_after_ours_and_before_limits():
    class Theirs(First):
        name = "theirs"

    stages = plugins.ordered((First(), Limits()), [Theirs()])
    assert [stage.name for stage in stages] == ["first", "theirs", "limits"]


def test_all_stages_are_gsubs_own_and_what_is_installed(installed):
    from slurm_plugins.decide.stages import STAGES

    install(installed, "mysite", {"a": "mysite_stages:Good"}, {"mysite_stages": GOOD})
    stages, problems = plugins.all_stages()
    assert problems == ()
    assert {stage.name for stage in stages} == {"good", *(stage.name for stage in STAGES)}


def old_and_new() -> Context:
    hosts = [
        *nodes("o[1-2]", {"v100": 4}, features=["v100"]),
        *nodes("n[1-2]", {"a100": 8}, features=["a100"]),
    ]
    return context(inventory(hosts, [partition("gpu", "o[1-2],n[1-2]", default=True)]))


def test_the_example_package_decides(installed):
    """With the entry points that its pyproject.toml declares."""
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "site_stage", installed / "site_stage")
    install(installed, declared["name"], declared["entry-points"][plugins.GROUP], {})
    stages, problems = plugins.load()
    assert problems == ()

    def prefer(**job: Any) -> object:
        request = Request(id=1, uid=1, job=Job(**job))
        decision = pipeline.decide(request, old_and_new(), decision_id="d-0", stages=stages)
        assert decision.failures == ()
        return decision.edits.get("prefer")

    assert prefer(tres_per_job="gres:gpu:1", time_limit=60) == "v100"
    assert prefer(tres_per_node="gres/gpu:1", time_limit=240) == "v100"
    assert prefer(tres_per_job="gres:gpu:1", time_limit=241) is None
    assert prefer(tres_per_job="gres:gpu:1") is None
    assert prefer(tres_per_job="gres:gpu:2", time_limit=60) is None
    assert prefer(tres_per_job="gres:gpu:1", time_limit=60, features="a100") is None


def test_the_guides_code_is_a_stage_that_does_what_it_says():
    code = re.search(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert code is not None
    namespace: dict[str, object] = {"__name__": "mysite.stages"}
    exec(compile(code[1], str(GUIDE), "exec"), namespace)
    night_queue = namespace["NightQueue"]()  # type: ignore[operator]

    def edits(**job: Any) -> dict[str, object]:
        request = Request(id=1, uid=1, job=Job(**job))
        decision = pipeline.decide(request, old_and_new(), decision_id="d-0", stages=[night_queue])
        return {name: value for name, value in decision.edits.items() if name != "admin_comment"}

    assert edits(time_limit=25 * 60) == {"prefer": "v100"}
    assert edits(time_limit=24 * 60) == {}
    assert edits(time_limit=25 * 60, prefer="a100") == {}
    assert f'{night_queue.name} = "' in GUIDE.read_text()  # its entry point


def test_the_guide_describes_every_stage_in_the_order_in_which_they_run():
    from slurm_plugins.decide.stages import STAGES

    described = re.findall(r"^### (\w+)$", (REPOSITORY / "docs/how-it-decides.md").read_text(), re.MULTILINE)
    assert described == [stage.name for stage in STAGES]


def test_every_stage_says_in_its_first_line_what_it_does():
    from slurm_plugins.decide.stages import STAGES

    for stage in STAGES:
        first = (stage.__doc__ or "").splitlines()[0]
        assert len(first) > 20 and first.endswith("."), stage.name
