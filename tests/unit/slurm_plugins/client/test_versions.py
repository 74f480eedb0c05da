"""Releases: how they compare, and which fields may be asked of which."""

import warnings

import pytest

from slurm_plugins.client import commands
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.runner import Completed
from slurm_plugins.client.versions import NEWEST, OLDEST, Version, fields_for


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", Version(22, 5, 8)),
        ("slurm 24.11.5", Version(24, 11, 5)),
        ("slurm-wlm 26.05.5\n", Version(26, 5, 5)),
        ("slurm 26.05.0-0rc1", Version(26, 5, 0)),
        ("slurm 23.02", Version(23, 2, 0)),
        ("slurm 25.05.3-2~deb13", Version(25, 5, 3)),
    ],
)
def test_parse(text, version):
    assert Version.parse(text) == version


@pytest.mark.parametrize("text", ["", "slurm", "version 3", "1.2.3"])
def test_parse_refuses(text):
    with pytest.raises(SlurmFormatError):
        Version.parse(text)


def test_order_is_that_of_releases():
    texts = ["22.05.8", "23.02.0", "23.11.1", "24.05.0", "24.11.5", "25.05.2", "25.11.0", "26.05.5"]
    versions = [Version.parse(text) for text in texts]
    assert versions == sorted(versions)
    assert [str(version) for version in versions] == texts


def _has(release: str, command: str, name: str) -> str | None:
    found: str | None = getattr(fields_for(Version.parse(release)), command).get(name)
    return found


@pytest.mark.parametrize(
    ("command", "name", "by_release"),
    [
        ("sacct", "planned", {"22.05": "Reserved", "23.02": "Planned", "26.05": "Planned"}),
        ("sacct", "failed_node", {"22.05": None, "23.02": "FailedNode", "26.05": "FailedNode"}),
        ("sacct", "stdout", {"23.11": None, "24.05": "StdOut", "26.05": "StdOut"}),
        ("sacct", "restarts", {"24.05": None, "24.11": "Restarts", "26.05": "Restarts"}),
        ("squeue", "excluded_nodes", {"22.05": None, "24.11": "ExcNodes"}),
        ("squeue_short", "excluded_nodes", {"22.05": "%x", "24.05": "%x", "24.11": None}),
        ("squeue", "exclusive", {"25.11": None, "26.05": "Exclusive"}),
    ],
)
def test_fields(command, name, by_release):
    assert {release: _has(release, command, name) for release in by_release} == by_release


def test_what_is_older_or_newer_gets_the_table_next_to_it():
    assert fields_for(Version(21, 8)) == fields_for(OLDEST)
    assert fields_for(Version(31, 5)) == fields_for(NEWEST)


def test_the_id_comes_first():
    # `tables.rows` takes the newline of the record before from the first field: that must not be a user's text
    for version in (OLDEST, NEWEST):
        assert next(iter(fields_for(version).squeue)) == "id"
        assert next(iter(fields_for(version).sacct)) == "id"


def test_a_newer_release_is_a_warning_once(monkeypatch):
    monkeypatch.setattr(commands, "_warned", set())

    def run(argv, **_):
        return Completed(argv[0], 0, "slurm 99.11.1\n", "")

    with pytest.warns(UserWarning, match="99.11.1 is newer"):
        assert CommandClient({}, run=run).version() == Version(99, 11, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CommandClient({}, run=run).version()
