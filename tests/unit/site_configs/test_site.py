"""What a sysadmin relies on: a right site file says what it seems to say, a wrong one gets one answer that helps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_configs.hostlist import expand
from site_configs.kinds import Kind, keys
from site_configs.site import DEFAULT_PATH, Site, SiteError, find_site, load_site, parse_site
from site_configs.site_reference import updated
from site_configs.units import format_duration, format_size, parse_duration, parse_size
from tests.paths import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = REPOSITORY
EXAMPLES = ROOT / "site_configs" / "examples"

# --- values -----------------------------------------------------------------------------------------------------------

DURATIONS = {
    "30 min": 1800,
    "30min": 1800,
    "30m": 1800,
    "1h 30m": 5400,
    "1h30m": 5400,
    "1.5 h": 5400,
    "0.5 min": 30,
    "90 s": 90,
    "1 second": 1,
    "2 Hours": 7200,
    "4d": 345600,
    "1 week": 604800,
    " 5 min ": 300,
    "0 s": 0,
    "1-12:00:00": 129600,
    "1-12": 129600,
    "1-12:30": 131400,
    "00:30:00": 1800,
    "36:00:00": 129600,
    "90:00": 5400,
    "30:15": 1815,
}

NOT_DURATIONS = {
    "": "not a duration",
    "30": "without a unit",
    "min": "not a duration",
    "-5 min": "not a duration",
    "5 months": '"months" is not a unit',
    "5 min 3": "not a duration",
    "1,5 h": "not a duration",
    "unlimited": "not a duration",
    "0.3 s": "whole number of seconds",
    "1-25:00:00": "up to 23",
    "10:75": "up to 59",
    "00:75:00": "up to 59",
    "9999999 w": "ten years",
    "1:2:3:4": "not a duration",
    "1" * 400 + " s": "not a duration",
    "٣ min": None,
}

SIZES = {
    "4G": 4096,
    "4 GB": 4096,
    "4 GiB": 4096,
    "4g": 4096,
    "512000M": 512000,
    "62.5G": 64000,
    "1T": 1 << 20,
    "2048K": 2,
    "0.5M": None,
    "1K": None,
    "1P": 1 << 30,
    "1024P": 1 << 40,
    "1025P": None,
    "0G": 0,
    "4": None,
    "4 G G": None,
    "-4G": None,
    "4X": None,
    "G": None,
    "": None,
    "1e3G": None,
}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "why"), NOT_DURATIONS.items())
def test_bad_durations(text, why):
    if why is None:  # digits of other scripts: refused or understood, never misread
        assert parse_duration(text) == 180
        return
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_duration(text)


@pytest.mark.parametrize(("text", "mib"), SIZES.items())
def test_sizes(text, mib):
    if mib is None:
        with pytest.raises(ValueError, match=r"unit|size|MiB|1024P"):
            parse_size(text)
    else:
        assert parse_size(text) == mib


@given(st.integers(0, 10 * 366 * 86400))
def test_a_duration_survives_being_written(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 3000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_slurms_way_to_write_durations_is_read(d, h, m, s):
    assert parse_duration(f"{d}-{h:02}:{m:02}:{s:02}") == ((d * 24 + h) * 60 + m) * 60 + s
    assert parse_duration(f"{d * 24 + h}:{m:02}:{s:02}") == ((d * 24 + h) * 60 + m) * 60 + s


@given(st.integers(0, 1 << 40))
def test_a_size_survives_being_written(mib):
    text = format_size(mib)
    assert parse_size(text) == mib
    assert re.fullmatch(r"\d+[MGTP]", text), "Slurm takes one number and one letter"


@given(st.text(max_size=80))
def test_no_text_breaks_the_parsers(text):
    for parse in (parse_duration, parse_size):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert str(error)


# --- whole files ------------------------------------------------------------------------------------------------------

VALID: dict[str, tuple[str, Callable[[Site], bool]]] = {
    "the smallest": (
        'cluster = "x"',
        lambda s: s.policy.mode == "observe" and s.name == "" and s.partitions == {},
    ),
    "CRLF": ('cluster = "x"\r\nname = "X"\r\n', lambda s: s.name == "X"),
    "duration": ('[smoke]\nmax_wait = "0:30:00"', lambda s: s.smoke.max_wait == 1800),
    "size": ('[resources]\nmax_memory_per_gpu = "62.5G"', lambda s: s.resources.max_memory_per_gpu == 64000),
    "whole ratio": ("[locality]\nslowdown = 2", lambda s: s.locality.slowdown == 2.0),
    "dotted keys": ('policy.mode = "advise"', lambda s: s.policy.mode == "advise"),
    "inline tables": (
        'accounts = {a = {mode = "enforce", rollout = 5}}',
        lambda s: s.accounts["a"].rollout == 5,
    ),
    "nodes are expanded": (
        'partitions.p.nodes = "n[08-10],m"',
        lambda s: s.partitions["p"].nodes == ("n08", "n09", "n10", "m"),
    ),
    "names with dots": (
        '[partitions."a.b"]\ngpus_per_node = 1',
        lambda s: s.partitions["a.b"].gpus_per_node == 1,
    ),
    "gpu type": ('gpu_types.a100.memory = "80G"', lambda s: s.gpu_types["a100"].memory == 81920),
    "zero GPUs": ("partitions.cpu.gpus_per_node = 0", lambda s: s.partitions["cpu"].gpus_per_node == 0),
    "smoke from the first GPU": ("smoke.above_gpus = 0", lambda s: s.smoke.above_gpus == 0),
    "no operators": ("operators = []", lambda s: s.operators == ()),
    "PostgreSQL": (
        'store.url = "postgresql+psycopg://gsub@db:5432/gsub"',
        lambda s: "db:5432" in s.store.url,
    ),
    "PostgreSQL by its socket": (
        'store.url = "postgresql+psycopg://gsub@/gsub?host=/run/postgresql"',
        lambda s: s.store.url.endswith("host=/run/postgresql"),
    ),
    "the shortest of the agent": (
        'agent = {interval = "1 s", deadline = "1 s", report = "1 s", spool_size = "1M"}',
        lambda s: (s.agent.interval, s.agent.deadline, s.agent.report, s.agent.spool_size) == (1, 1, 1, 1),
    ),
    "the longest interval": ('agent.interval = "1 h"', lambda s: s.agent.interval == 3600),
    "a day of records, series at their default": (
        'store.retention = "1 d"',
        lambda s: s.store.retention == 86400,
    ),
    "series for as long as records": (
        'store = {retention = "30 d", series_retention = "30 d"}',
        lambda s: s.store.series_retention == s.store.retention,
    ),
    "the highest port": ('service.url = "http://c:65535/x"', lambda s: s.service.url.endswith("65535/x")),
    "no ports": (
        'service.url = "http://[::1]"\nreceipt.mail_server = "localhost"',
        lambda s: s.service.url == "http://[::1]",
    ),
    "IPv6 with a port": ('service.url = "https://[fd00::1]:6831"', lambda s: s.service.url.endswith("6831")),
    "relative path": (
        'topology.file = "topology.conf"',
        lambda s: s.topology.file == "/etc/gsub/topology.conf",
    ),
    "relative paths in a list": (
        'failures.signatures = ["a.toml", "/b.toml"]',
        lambda s: s.failures.signatures == ("/etc/gsub/a.toml", "/b.toml"),
    ),
    "actions by reason": (
        'resubmit = {budget = 1, actions = {nccl_error = "once", gpu_oom = "never"}}',
        lambda s: s.resubmit.actions == (("gpu_oom", "never"), ("nccl_error", "once")),
    ),
    "a cap that equals the share": (
        "partitions.p = {gpus_per_node = 8, cpus_per_node = 64, resources = {max_cpus_per_gpu = 8}}",
        lambda s: s.partitions["p"].resources.max_cpus_per_gpu == 8,
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_valid(case):
    text, holds = VALID[case]
    text = text if "cluster" in text else f'cluster = "x"\n{text}'
    assert holds(parse_site(text, "/etc/gsub/site.toml"))


# What stands in the file (after cluster = "x") -> parts of the message, all of which must be there.
INVALID = [
    # the file
    ("max_wait", ["line 2, column", "not TOML", "key = value"]),
    ("name = X", ["line 2, column 8", "quotes", "name = X"]),
    ('name = "X', ["line 2", "not TOML", "Close the text"]),
    ('name = "X"\nname = "Y"', ["line 3", "stands twice"]),
    ("[policy]\n[policy]", ["line 3", "stands twice"]),
    ("[partitions.gpu]\n[partitions.gpu]", ["line 3", "stands twice", "together"]),
    ("[policy", ["line 2", "not TOML"]),
    ("name = [1, 2", ["end of file", "not TOML"]),
    # unknown keys
    ("[polcy]", ["polcy = {}", "no key of the top", 'did you mean "policy"']),
    (
        '[partitions.gpu]\nnods = "n1"',
        ["partitions.gpu.nods", "no key of [partitions.gpu]", 'did you mean "nodes"'],
    ),
    ('max_wait = "1h"', ["max_wait", "It belongs in [locality]"]),
    ("[smoke]\nslowdown = 1.2", ["smoke.slowdown", "It belongs in [locality]"]),
    ("[smoke]\nzzz = 1", ["smoke.zzz = 1", "Remove it, or use one of: above_gpus, way"]),
    ('[policy]\noperators = ["a"]', ["policy.operators", "It belongs at the top"]),
    ('"" = 1', ['"" = 1', "no key of the top"]),
    # words
    (
        'policy.mode = "enforced"',
        ["policy.mode", '"enforced"', '"observe", "advise", "enforce"', 'did you mean "enforce"'],
    ),
    ('policy.mode = "Enforce"', ['did you mean "enforce"']),
    (
        "policy.mode = true",
        ["policy.mode = true", "true or false where one of a few words belongs", '"advise"'],
    ),
    ('policy.retune = "up"', ["policy.retune", '"off", "lower", "both"']),
    ("policy.sensitivity = false", ["policy.sensitivity"]),
    ('smoke.way = "both"', ["smoke.way", '"race", "gate"']),
    ('partitions.p.mode = "off"', ["partitions.p.mode", '"observe"']),
    # flags and numbers
    ('policy.repack = "yes"', ["policy.repack", "a text where true or false belongs", "without quotes"]),
    ("policy.repack = 1", ["policy.repack = 1", "a bare number where true or false"]),
    ("policy.rollout = 120", ["policy.rollout = 120", "not between 0 and 100"]),
    ('policy.rollout = "20%"', ["policy.rollout", "a text where a number of percent belongs"]),
    ("policy.rollout = 12.5", ["not a whole number", "from 0 to 100"]),
    ("policy.rollout = true", ["true or false where a number"]),
    ("locality.slowdown = 0.9", ["locality.slowdown = 0.9", "not between 1 and 10"]),
    ('locality.slowdown = "15%"', ["a text where a number belongs", "without a percent sign"]),
    ("locality.slowdown = nan", ["not between 1 and 10"]),
    ("locality.slowdown = inf", ["not between 1 and 10"]),
    (
        "partitions.p.gpus_per_node = -1",
        ["partitions.p.gpus_per_node = -1", "not between 0 and 1024", "GPUs"],
    ),
    # durations and sizes
    ("smoke.max_wait = 10", ["smoke.max_wait = 10", "a bare number where a duration belongs", '"30 min"']),
    ('smoke.max_wait = "10"', ["a number without a unit", '"30 min"']),
    ('smoke.max_wait = "10 minuts"', ['"minuts" is not a unit of time']),
    ("smoke.max_wait = 00:30:00", ["an unquoted date or time where a duration belongs"]),
    ('locality.max_wait = "forever"', ["not a duration"]),
    ('locality.run_time = "3650 w"', ["longer than ten years"]),
    ("resources.max_memory_per_gpu = 64", ["a bare number where a size belongs", '"4G"']),
    ('resources.max_memory_per_gpu = "64"', ["a number without a unit", "1024M"]),
    ('resources.max_memory_per_gpu = "64 gigs"', ["not a size"]),
    ('resources.max_memory_per_gpu = "1K"', ["not a whole number of MiB"]),
    # values that would break what they are for
    ('agent.interval = "0 s"', ["agent.interval", '"0 s"', "shorter than 1 s", "1 s to 1 h"]),
    ('agent.interval = "61 min"', ["agent.interval", "longer than 1 h", "1 s to 1 h"]),
    ('agent.deadline = "0 s"', ["agent.deadline", "shorter than 1 s", "at least 1 s"]),
    ('agent.report = "0 s"', ["agent.report", "shorter than 1 s", "at least 1 s"]),
    ('agent.spool_size = "0G"', ["agent.spool_size", "smaller than 1M", "at least 1M"]),
    ("agent.interval = 10", ["agent.interval = 10", "a bare number where a duration belongs"]),
    ('store.retention = "0 s"', ["store.retention", "shorter than 1 d", "at least 1 d"]),
    ('store.series_retention = "23 h"', ["store.series_retention", "shorter than 1 d", "at least 1 d"]),
    (
        'store = {retention = "30 d", series_retention = "31 d"}',
        ["store.series_retention", '"31 d"', 'longer than retention, which is "30 d"', "Raise retention"],
    ),
    ('store.series_retention = "2 w 400 d"', ["store.series_retention", 'which is "365 d"']),
    # actions after failures
    ('resubmit.actions.gpu_omm = "never"', ["resubmit.actions", '"gpu_omm"', 'did you mean "gpu_oom"']),
    ('resubmit.actions.gpu_oom = "thrice"', ["resubmit.actions", '"never", "once", "other_node"']),
    ('resubmit.actions = "never"', ["resubmit.actions", "a text where actions by reason belongs"]),
    ("resubmit.budget = 9\nresubmit.budget_most = 8", ["resubmit.budget = 9", "budget_most, which is 8"]),
    ('resubmit.backoff_most = "2 h"', ["resubmit.backoff_most", "longer than an hour", '"1 h"']),
    (
        'resubmit = {backoff = "5 min", backoff_most = "1 min"}',
        ["resubmit.backoff =", "longer than backoff_most"],
    ),
    # names, lists, paths, addresses
    ('operators = "ada"', ["operators", "a text where a list of user names belongs", '["ada"]']),
    ('operators = ["ada", "ada"]', ['"ada" stands twice']),
    ('operators = ["Ada Lovelace"]', ["not a user name", "login names"]),
    ("operators = [1000]", ["a bare number where a user name belongs"]),
    ('name = ""', ['name = ""', "not a short line"]),
    ('failures.signatures = "a.toml"', ["failures.signatures", "in brackets", '["a.toml"]']),
    ('topology.file = ""', ["topology.file", "not a path"]),
    ('store.url = "mysql://x"', ["store.url", "sqlite:////PATH"]),
    (
        'store.url = "postgresql+psycopg://gsub:secret@db/gsub"',
        ["store.url", "a password goes into ~/.pgpass"],
    ),
    (
        'store.url = "postgresql+psycopg://gsub@/gsub?host=/run/postgresql&password=secret"',
        ["store.url", "a password goes into ~/.pgpass"],
    ),
    ('service.url = "controller:6830"', ["service.url", "http://"]),
    ('service.url = "http://controller:65536"', ["service.url", "65536 is no port", "1 to 65535"]),
    ('service.url = "http://controller:0/"', ["service.url", "0 is no port"]),
    ('service.url = "http://[::1]:99999"', ["service.url", "99999 is no port"]),
    ('service.url = "http://controller:http"', ["service.url", "not the address of the service"]),
    ('receipt.mail_server = "mail:99999"', ["receipt.mail_server", "99999 is no port", "localhost:25"]),
    ('receipt.mail_server = "mail:0"', ["receipt.mail_server", "0 is no port"]),
    ('partitions.p.nodes = "n[1-999999999]"', ["partitions.p.nodes", "more than 65536 names"]),
    ('partitions.p.nodes = "n[8-1]"', ["runs backwards"]),
    ('partitions.p.nodes = "n[1-8"', ["brackets that do not match"]),
    ('partitions.p.nodes = "@gpu"', ["cannot stand in a node name"]),
    ('partitions.p.nodes = " , "', ["no node in it"]),
    ('partitions.p.nodes = ["n1"]', ["a list where a hostlist belongs"]),
    # tables
    ('policy = "observe"', ["policy", "a text where a table belongs", "[policy]"]),
    ("[[policy]]", ["policy", "a list where a table belongs"]),
    ('partitions = ["gpu"]', ["partitions", "[partitions.NAME]"]),
    ('partitions.gpu = "n[1-8]"', ["partitions.gpu", "a text where a table belongs"]),
    # contradictions
    (
        "partitions.p = {gpus_per_node = 8, cpus_per_node = 64, resources = {max_cpus_per_gpu = 4}}",
        ["partitions.p.resources.max_cpus_per_gpu = 4", "64 / 8 GPUs = 8", "Raise it to 8"],
    ),
    (
        'partitions.p = {gpus_per_node = 8, memory_per_node = "512G", resources = {max_memory_per_gpu = "32G"}}',
        ["partitions.p.resources.max_memory_per_gpu", '"512G" / 8 GPUs = "64G"'],
    ),
    (
        "resources.max_cpus_per_gpu = 4\npartitions.p = {gpus_per_node = 8, cpus_per_node = 64}",
        ["partitions.p.resources.max_cpus_per_gpu = 4", "share of a node"],
    ),
    (
        "partitions.p = {gpus_per_node = 8, cpus_per_node = 64, resources = {keep_cpus_per_gpu = 9}}",
        ["partitions.p.resources.keep_cpus_per_gpu = 9", "Lower it to 8"],
    ),
    (
        "resources = {max_cpus_per_gpu = 2, keep_cpus_per_gpu = 3}",
        ["resources.max_cpus_per_gpu = 2", "keep_cpus_per_gpu, which is 3"],
    ),
    ('resources.max_memory_per_gpu = "1G"', ["less than keep_memory_per_gpu", '"4G"']),
    ("policy.rollout = 20", ["policy.rollout = 20", "its mode is observe", '"advise" or "enforce"']),
    (
        'accounts.lab.mode = "enforce"\naccounts.Lab.mode = "observe"',
        ["accounts.Lab", "accounts.lab is the same account", "into one table"],
    ),
    ("accounts.a.rollout = 20", ["accounts.a.rollout = 20", "no mode beside it"]),
    ('partitions.p = {mode = "observe", rollout = 1}', ["partitions.p.rollout = 1", "its mode is observe"]),
    (
        '[gpu_types.a100]\n[partitions.p]\ngpu_type = "a10"',
        ["partitions.p.gpu_type", "not declared", 'did you mean "a100"'],
    ),
    (
        '[gpu_types.a100]\n[partitions.p]\ngpu_type = "a100"\ngpus_per_node = 0',
        ["partitions.p.gpu_type", "gpus_per_node is 0"],
    ),
    (
        'topology = {file = "t.conf", feature_prefix = "leaf"}',
        ["topology.feature_prefix", "topology.file is set too"],
    ),
    ('topology.file = "t.conf"\npartitions.p.topology = "ib"', ["partitions.p.topology", "topology.yaml"]),
]


@pytest.mark.parametrize(("text", "parts"), INVALID, ids=[text[:40] for text, _ in INVALID])
def test_invalid(text, parts):
    with pytest.raises(SiteError) as caught:
        parse_site(f'cluster = "x"\n{text}\n', "/etc/gsub/site.toml")
    message = str(caught.value)
    for part in ["/etc/gsub/site.toml", *parts]:
        assert part in message
    lines = message.splitlines()
    assert len(lines) == 2, "one error: where and what, then the remedy"
    assert all(line and line.isprintable() and len(line) < 250 for line in lines)


def test_the_cluster_is_required():
    with pytest.raises(SiteError, match=r"(?s)cluster: this key is missing\nAdd it: cluster = .*ClusterName"):
        parse_site("")


def test_the_first_error_is_told_and_the_others_are_counted():
    with pytest.raises(SiteError) as caught:
        parse_site('cluster = "x"\nsmoke.max_wait = 3\nsmoke.way = "x"\nlocality.slowdown = 0\n', "s.toml")
    assert str(caught.value).splitlines()[2] == "2 more errors in this file."
    assert (caught.value.more, caught.value.key, caught.value.value) == (2, "locality.slowdown", "0")


def test_a_hostile_value_stays_on_its_line():
    with pytest.raises(SiteError) as caught:
        parse_site(f'cluster = "x"\npolicy.mode = "a\\n\\u001b[31m{"b" * 5000}"\n')
    assert len(str(caught.value).splitlines()) == 2
    assert len(str(caught.value)) < 400
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 50_000, "a." * 2_000 + "b = 1", "x = " + "9" * 5_000],
    ids=["arrays", "dots", "digits"],
)
def test_depth_and_length_are_refused_not_endured(text):
    with pytest.raises(SiteError):
        parse_site(text)


# --- where the file is ------------------------------------------------------------------------------------------------


def test_find_site():
    assert find_site({"GSUB_SITE": "/nowhere/site.toml"}) == Path("/nowhere/site.toml")
    assert find_site({}) == find_site({"GSUB_SITE": ""}) == (DEFAULT_PATH if DEFAULT_PATH.exists() else None)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device", "binary", "big"])
def test_a_file_that_is_none(tmp_path, kind):
    path = tmp_path / "site.toml"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "binary":
            path.write_bytes(b'cluster = "x"\nname = "\xff"\n')
        case "big":
            path.write_bytes(b"#" * (2 << 20))
    said = {
        "missing": "No such file",
        "folder": "directory|regular",
        "fifo": "not a regular file",
        "device": "not a regular file",
        "binary": r"not UTF-8 text \(line 2\)",
        "big": "larger than 1 MiB",
    }
    with pytest.raises(SiteError, match=f"{re.escape(str(path))}.*({said[kind]})") as caught:
        load_site(path)
    assert len(str(caught.value).splitlines()) == 2


def test_a_byte_order_mark_does_no_harm(tmp_path):
    (tmp_path / "site.toml").write_text('\ufeffcluster = "x"\n', encoding="utf-8")
    assert load_site(tmp_path / "site.toml").cluster == "x"


def test_relative_paths_start_at_the_files_folder(tmp_path, monkeypatch):
    (tmp_path / "site.toml").write_text('cluster = "x"\ntopology.file = "t.conf"\n')
    monkeypatch.chdir(tmp_path)
    assert load_site("site.toml").topology.file == str(tmp_path / "t.conf")


# --- what it means ----------------------------------------------------------------------------------------------------


def modes(text: str, uid: int = 1000) -> dict[str, str]:
    site = parse_site('cluster = "x"\n' + text)
    return {
        f"{p}/{a}": site.mode_for(partition=p, account=a, uid=uid)
        for p in ("gpu", "other")
        for a in ("vip", "any")
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "observe observe observe observe"),
        ('policy.mode = "advise"', "advise advise advise advise"),
        ('accounts.vip.mode = "enforce"', "enforce observe enforce observe"),
        ('partitions.gpu.mode = "enforce"', "enforce enforce observe observe"),
        (
            'accounts.VIP.mode = "enforce"',
            "enforce observe enforce observe",
        ),  # Slurm has them in small letters
        ('partitions.GPU.mode = "enforce"', "observe observe observe observe"),
        ('policy.mode = "enforce"\npartitions.gpu.mode = "observe"', "observe observe enforce enforce"),
        ('partitions.gpu.mode = "observe"\naccounts.vip.mode = "enforce"', "observe observe enforce observe"),
        ('partitions.gpu.mode = "enforce"\naccounts.vip.mode = "advise"', "advise enforce advise observe"),
        ('policy.mode = "enforce"\npolicy.rollout = 0', "observe observe observe observe"),
        (
            'policy.mode = "advise"\npartitions.gpu = {mode = "enforce", rollout = 0}',
            "observe observe advise advise",
        ),
    ],
)
def test_mode_for(text, expected):
    assert list(modes(text).values()) == expected.split()


@given(st.integers(0, 2**32 - 1), st.integers(0, 99))
def test_raising_a_rollout_only_adds_users(uid, percent):
    def covered(rollout: int) -> bool:
        site = parse_site(f'cluster = "x"\npolicy = {{mode = "enforce", rollout = {rollout}}}')
        return site.mode_for(partition="p", account="a", uid=uid) == "enforce"

    assert covered(percent) <= covered(percent + 1)
    assert covered(100)
    assert not covered(0)


def test_a_rollout_covers_about_its_share_of_users():
    site = parse_site('cluster = "x"\npolicy = {mode = "enforce", rollout = 25}')
    share = (
        sum(site.mode_for(partition="p", account="a", uid=uid) == "enforce" for uid in range(1000, 5000))
        / 4000
    )
    assert 0.22 < share < 0.28


def test_a_partition_inherits_what_it_does_not_say():
    site = parse_site(
        'cluster = "x"\n'
        '[partitions.a]\ngpus_per_node = 8\nmode = "enforce"\nlocality.max_wait = "1h"\n[partitions.b]\n'
        '[locality]\nslowdown = 1.5\nmax_wait = "2 min"\n[resources]\nmax_cpus_per_gpu = 12\n'
    )
    a, b, undeclared = site.partition("a"), site.partition("b"), site.partition("c")
    assert (a.locality.slowdown, a.locality.max_wait, a.resources.max_cpus_per_gpu) == (1.5, 3600, 12)
    assert (b.locality.max_wait, undeclared.locality.max_wait, undeclared.resources.max_cpus_per_gpu) == (
        120,
        120,
        12,
    )
    assert (b.gpus_per_node, b.mode) == (None, None), "a partition is no pattern for the next one"
    assert undeclared.name == "c"


def test_a_site_without_topology_is_flat_over_its_nodes():
    site = parse_site('cluster = "x"\npartitions.p.nodes = "n[1-2]"')
    assert site.topologies().of().kind == "flat"
    assert site.topologies().of().nodes == ("n1", "n2")


def test_a_site_can_name_leaves_by_features():
    site = parse_site('cluster = "x"\ntopology.feature_prefix = "rack"')
    topology = site.topologies(features={"n1": ["a100", "rack1"], "n2": ["rack2"]}).of()
    assert topology.distance("n1", "n2") == 3


# --- examples and reference -------------------------------------------------------------------------------------------


def slurm_lines(path: Path) -> list[dict[str, str]]:
    """Lines of a slurm.conf or gres.conf as they are, keys and values."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [dict(word.partition("=")[::2] for word in line) for line in lines if line]


@pytest.mark.parametrize("name", ["small-lab", "university"])
class TestExamples:
    def test_partitions_and_nodes_agree_with_slurm(self, name):
        site = load_site(EXAMPLES / f"{name}.toml")
        conf = slurm_lines(EXAMPLES / name / "slurm.conf")
        nodes = {node: line for line in conf if "NodeName" in line for node in expand(line["NodeName"])}
        partitions = {line["PartitionName"]: line for line in conf if "PartitionName" in line}
        assert next(line["ClusterName"] for line in conf if "ClusterName" in line) == site.cluster
        assert list(site.partitions) == list(partitions) or set(site.partitions) == set(partitions)
        for partition in site.partitions.values():
            line = partitions[partition.name]
            assert partition.nodes == expand(line["Nodes"])
            if site.topology.file.endswith(".yaml"):
                assert (partition.topology or "flat") == line["Topology"]
            for node in partition.nodes:
                _, _, gres = nodes[node].get("Gres", "").partition("gpu:")
                assert gres == (
                    f"{partition.gpu_type}:{partition.gpus_per_node}" if partition.gpus_per_node else ""
                )
                if partition.gpus_per_node:
                    assert int(nodes[node]["CPUs"]) == partition.cpus_per_node
                    assert int(nodes[node]["RealMemory"]) == partition.memory_per_node

    def test_gres_conf_has_a_device_for_each_gpu(self, name):
        site = load_site(EXAMPLES / f"{name}.toml")
        gres = {
            node: line
            for line in slurm_lines(EXAMPLES / name / "gres.conf")
            for node in expand(line["NodeName"])
        }
        for partition in site.partitions.values():
            for node in partition.nodes if partition.gpus_per_node else ():
                assert gres[node]["Type"] == partition.gpu_type
                assert len(expand(gres[node]["File"].rpartition("/")[2])) == partition.gpus_per_node

    def test_the_topology_holds_every_node_of_its_partitions(self, name):
        site = load_site(EXAMPLES / f"{name}.toml")
        topologies = site.topologies()
        for partition in site.partitions.values():
            topology = topologies.of(partition.topology or None)
            if partition.gpus_per_node:
                assert set(partition.nodes) <= set(topology.nodes)
                assert (
                    topology.fewest_leaves(dict.fromkeys(partition.nodes, partition.gpus_per_node), gpus=1)
                    == 1
                )

    def test_slurm_waits_as_long_as_gsub_may_ask_for(self, name):
        site = load_site(EXAMPLES / f"{name}.toml")
        conf = slurm_lines(EXAMPLES / name / "slurm.conf")
        limit = next(line["SchedulerParameters"] for line in conf if "SchedulerParameters" in line)
        longest = max(p.locality.max_wait for p in site.partitions.values())
        assert int(limit.removeprefix("max_switch_wait=")) >= longest


def kinds_of(cls: type, path: str = ""):
    for name, item in keys(cls).items():
        kind: Kind = item.metadata["kind"]
        where = f"{path}.{name}" if path else name
        if kind.table is None:
            yield where, kind, item
        else:
            yield from kinds_of(kind.table, f"{where}.NAME" if kind.named else where)


def test_the_reference_is_what_the_code_says():
    page = (ROOT / "docs" / "site-file.md").read_text(encoding="utf-8")
    assert updated(page) == page, "run: python -m site_configs.site_reference docs/site-file.md"


def test_every_key_is_documented():
    page = (ROOT / "docs" / "site-file.md").read_text(encoding="utf-8")
    found = list(kinds_of(Site))
    assert len(found) > 35
    for where, kind, item in found:
        doc = item.metadata["doc"]
        assert doc.endswith((".", "?")), where
        assert f"| `{where.rpartition('.')[2]}` | {kind.label} |" in page, where
        shown = item.default in (None, "", ())
        assert not shown or "Unset:" in doc or where in ("operators", "failures.signatures"), where


def test_every_default_is_a_value_that_the_file_may_hold():
    for where, kind, item in kinds_of(Site):
        default = item.default
        if where != "cluster" and default not in (None, "", ()):
            assert kind.parse(tomllib.loads(f"x = {kind.show(default)}")["x"]) == default, where


def test_the_errors_in_the_docs_are_real():
    page = (ROOT / "docs" / "site-file.md").read_text(encoding="utf-8")
    said = re.search(r"```text\n(.*?)\n```", page, re.DOTALL)
    with pytest.raises(SiteError) as caught:
        parse_site('cluster = "lab"\npartitions.gpu.locality.max_wait = 30', "/etc/gsub/site.toml")
    assert said is not None
    assert said[1] == str(caught.value)


def test_loading_imports_nothing_heavy(tmp_path):
    """The site file is on the way of every submission."""
    path = tmp_path / "site.toml"
    path.write_text('cluster = "x"\npartitions.p.nodes = "n[1-8]"\n')
    code = (
        f"import sys; from site_configs.site import load_site; load_site({str(path)!r}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {
        "difflib",
        "ClusterShell",
        "yaml",
        "msgspec",
        "rich",
        "pandas",
        "socket",
        "subprocess",
        "asyncio",
    }
    assert heavy.isdisjoint(done.stdout.split())
