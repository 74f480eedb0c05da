"""Which checks run on a node: gsub's, as the site file changes them, and the site's own."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from prolog_epilog.health.child import GROUP
from prolog_epilog.health.finding import Limits
from prolog_epilog.health.plan import Plan, Planned, planned
from prolog_epilog.health.reference import updated
from prolog_epilog.health.table import CHECKS
from prolog_epilog.health.tasks import Task
from site_configs.site import load_site
from site_configs.site_model import Site
from tests.paths import REPOSITORY

GUIDE = REPOSITORY / "docs/health.md"


@pytest.fixture
def plan(tmp_path):
    def make(text: str = "", node: str = "n1", points: tuple[EntryPoint, ...] = ()) -> Plan:
        (tmp_path / "site.toml").write_text(f'cluster = "c"\n{text}')
        site = load_site(tmp_path / "site.toml")
        return planned(site, node, spool="/var/spool/gsub", slurmd_spool="/var/spool/slurmd", points=points)

    return make


def one(plan: Plan, name: str) -> Planned:
    (found,) = [check for check in plan.checks if check.name == name]
    return found


def task(plan: Plan, name: str) -> Task:
    found = one(plan, name).task
    assert found is not None
    return found


def test_without_a_word_in_the_site_file_the_table_runs(plan):
    found = plan()
    assert [check.name for check in found.checks] == list(CHECKS)
    assert found.problems == ()
    assert task(found, "disk_space").paths == ("/", "/tmp", "/var", "/dev/shm", "/var/spool/gsub")
    assert task(found, "slurmd_spool").paths == ("/var/spool/slurmd",)
    assert one(found, "gpu_temperature").limits == Limits(88, 95)
    assert one(found, "clocks_stuck").limits.below


@pytest.mark.parametrize(
    ("text", "name", "want"),
    [
        ("warn = 70", "gpu_temperature", {"limits": Limits(70, 95)}),
        ("warn = 50\nfail = 60", "disk_space", {"limits": Limits(50, 60)}),
        ('on_fail = "none"', "gpu_count", {"on_fail": "none"}),
        ('every = "1m"', "disk_space", {"every": 60}),
        ('every = "5m"', "gpu_temperature", {"every": 300}),
    ],
)
def test_the_site_file_changes_a_check(plan, text, name, want):
    found = one(plan(f"[health.checks.{name}]\n{text}"), name)
    assert {key: getattr(found, key) for key in want} == want


def test_paths_and_deadlines_reach_the_child(plan):
    found = task(plan('[health.checks.stale_mounts]\npaths = ["/home"]\ndeadline = "30s"'), "stale_mounts")
    assert (found.paths, found.deadline, found.alone) == (("/home",), 30.0, True)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("enabled = false", False),
        ('nodes = "n[2-4]"', False),
        ('nodes = "n[1-4]"', True),
    ],
)
def test_a_check_can_be_switched_off_and_be_for_some_nodes(plan, text, runs):
    found = plan(f"[health.checks.disk_space]\n{text}\n[health.checks.mine]\ncommand = ['/bin/true']\n{text}")
    names = {check.name for check in found.checks}
    assert ("disk_space" in names, "mine" in names) == (runs, runs)
    assert found.problems == ()


def test_health_switched_off_leaves_nothing(plan):
    assert plan("[health]\nenabled = false\n[health.checks.mine]\ncommand = ['/bin/true']") == Plan()


@pytest.mark.case("A8")
def test_a_site_file_that_others_may_write_commands_nothing(plan, tmp_path):
    text = "[health.checks.mine]\ncommand = ['/bin/true']\n[health.checks.disk_space]\nwarn = 50"
    plan(text)
    site = load_site(tmp_path / "site.toml")
    why = "everybody may write to /etc/gsub/site.toml"
    made = planned(site, "n1", spool="/s", slurmd_spool="/d", points=(), untrusted=why)
    assert "mine" not in [check.name for check in made.checks]
    assert made.problems == (f"[health.checks.mine] is left out, as it would run as root: {why}",)
    assert one(made, "disk_space").limits.warn == 50, "figures are still taken"


def test_a_command_of_the_sites(plan):
    made = plan("[health.checks.mine]\ncommand = ['/usr/sbin/nhc', '-q']\ndeadline = '1m'")
    found, run = one(made, "mine"), task(made, "mine")
    assert (found.every, found.on_fail) == (300, "comment")
    assert (run.kind, run.command, run.deadline, run.alone) == (
        "command",
        ("/usr/sbin/nhc", "-q"),
        60.0,
        True,
    )


def test_a_class_of_the_sites_is_planned_without_being_imported(plan):
    point = EntryPoint("licence", "nowhere_at_all:Licence", GROUP)
    made = plan('[health.checks.licence]\nevery = "10m"\non_fail = "none"', points=(point,))
    found, run = one(made, "licence"), task(made, "licence")
    assert (found.every, found.on_fail) == (600, "none")
    assert (run.kind, run.value) == ("plugin", "nowhere_at_all:Licence")


@pytest.mark.parametrize(
    ("text", "points", "problem"),
    [
        ("[health.checks.gpu_cuont]\nwarn = 1", {}, 'is no check: did you mean "gpu_count"?'),
        ("[health.checks.licence]\nwarn = 1", {}, "a check of your own needs a command"),
        ("[health.checks.xid]\ncommand = ['/bin/true']", {}, "has a command, but is one of gsub's"),
        ("", {"disk_space": "mine:Check"}, "disk_space (mine:Check) is left out: there is one of that name"),
        ("[health.checks.mine]\ncommand = ['/bin/true']", {"mine": "a:B"}, "mine (a:B) is left out"),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_runs(plan, text, points, problem):
    found = plan(text, points=tuple(EntryPoint(name, value, GROUP) for name, value in points.items()))
    (said,) = found.problems
    assert problem in said
    assert set(CHECKS) <= {check.name for check in found.checks}


def test_a_damaged_package_elsewhere_costs_the_sites_own_checks_only(tmp_path, monkeypatch):
    """Its list of entry points is no text at all."""
    info = tmp_path / "damaged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_bytes(b"\xff\xfe\x00broken")
    monkeypatch.syspath_prepend(tmp_path)
    found = planned(Site(cluster="c"), "n1", spool="/s", slurmd_spool="/d")
    assert [check.name for check in found.checks] == list(CHECKS)
    assert "the site's own checks cannot be listed" in found.problems[0]


def test_the_guide_shows_the_tables_of_today():
    """If this fails: .venv/bin/python -m prolog_epilog.health.reference docs/health.md"""
    page = GUIDE.read_text(encoding="utf-8")
    assert updated(page) == page


def test_the_guide_says_of_each_check_what_to_do():
    page = GUIDE.read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"\n| `{name}` | " not in page.split("## What to do")[1]] == []


def test_few_checks_drain_and_all_say_when_they_run():
    assert {name for name, row in CHECKS.items() if row.on_fail == "drain"} == {
        "gpu_count", "gpu_lost", "xid", "row_remap",
    }  # fmt: skip
    for row in CHECKS.values():
        if row.gpu is None:
            assert row.every and row.deadline, row.name
        assert row.doc.endswith("."), row.name
        assert bool(row.unit) == (row.warn is not None or row.fail is not None), row.name


def test_the_site_files_reference_and_the_plan_name_the_same_keys(plan):
    """Each key of [health.checks.NAME] has an effect: none is read by nobody."""
    from site_configs.kinds import keys
    from site_configs.site_model import Check

    changed: dict[str, Any] = {
        "enabled": "enabled = false", "on_fail": 'on_fail = "none"',
        "every": "every = '7s'", "deadline": "deadline = '7s'",
        "warn": "warn = 7", "fail": "fail = 7", "paths": 'paths = ["/x"]', "nodes": 'nodes = "x"',
        "command": "command = ['/bin/true']",
    }  # fmt: skip
    assert set(keys(Check)) == set(changed)
    for key, text in changed.items():
        name = "mine" if key == "command" else "disk_space"
        assert plan(f"[health.checks.{name}]\n{text}") != plan(), key
