"""The page of an audit, taken apart by a parser: nothing from outside, the figures' numbers, names as text, bounded."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from profiler.report.cells import CAUSES, UNITS, cell
from profiler.report.figures import UNKNOWN, Table, audit
from profiler.report.html import ROWS, page
from profiler.wording import NOT_KNOWN, percent, plain
from tests.unit.profiler.report.history import SINCE, UNTIL
from tests.unit.profiler.report.pages import ABOUT, HOSTILE, Reader, crowd, history, made, read

DAY = 86400.0
WITH_ALL = ("utilisation", "waiting", "waiting_by_cause_and_size")
TAGS = """
html head meta title link style body a header p h1 h2 bdi time nav ul li main section dl div dt dd figure span svg desc
g rect text line polyline circle path label input table caption thead tbody tfoot tr th td code footer script
"""


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return history(tmp_path_factory.mktemp("history"))


@pytest.fixture(scope="module")
def whole(frame: pd.DataFrame) -> tuple[str, dict[str, Table]]:
    return made(frame)


@pytest.fixture(scope="module")
def reader(whole: tuple[str, dict[str, Table]]) -> Reader:
    return read(whole[0])


def attributes(reader: Reader, tag: str) -> list[dict[str, str | None]]:
    return [named for found, named in reader.tags if found == tag]


@pytest.mark.slow
def test_nothing_comes_from_outside(reader: Reader) -> None:
    for tag, named in reader.tags:
        assert not {name for name in named if name.startswith("on") or name in ("style", "src", "srcset")}, (
            tag
        )
        for name in {"href", "xlink:href", "action"} & set(named):
            assert str(named[name]).startswith(("#", "data:,")), (tag, named)
    for text in (reader.texts["style"], reader.texts["script"]):
        assert not re.search(
            r"https?:|//[a-z]|url\(|@import|fetch|XMLHttp|eval|innerHTML", text.replace("// ", "")
        )


def test_the_policy_allows_the_style_and_the_script_and_nothing_else(reader: Reader) -> None:
    policy = next(
        str(named["content"])
        for named in attributes(reader, "meta")
        if named.get("http-equiv") == "Content-Security-Policy"
    )
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules.pop("default-src") == ["'none'"] == rules.pop("base-uri") == rules.pop("form-action")
    assert rules.pop("img-src") == ["data:"]
    for tag in ("style", "script"):
        assert len(attributes(reader, tag)) == 1
        digest = base64.b64encode(hashlib.sha256(reader.texts[tag].encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == [f"'sha256-{digest}'"]
    assert rules == {}


def test_each_cell_has_the_number_of_the_figures(whole: tuple[str, dict[str, Table]], reader: Reader) -> None:
    tables = whole[1]
    assert reader.tables.keys() == tables.keys()
    compared = 0
    for name, table in tables.items():
        found = reader.tables[name]
        columns = [str(column) for column in table.rows]
        assert len(found["thead"][0]) == len(columns)
        # In the foot, where it is not sorted among the others
        whole_row = [cells[0].text for cells in found["tfoot"]]
        assert whole_row == (["all"] if name in WITH_ALL else [])
        shown = found["tbody"] + found["tfoot"]
        assert len(shown) == len(table.rows) <= ROWS
        for row, cells in zip(table.rows.to_dict("records"), shown, strict=True):
            assert cells[0].tag == "th"
            for column, one in zip(columns, cells, strict=True):
                value = row[column]
                where = f"{name}, {column}, {cells[0].text}"
                if isinstance(value, str) and value != UNKNOWN:
                    text = CAUSES.get(value, value) if column == "cause" else plain(value, 120)
                    assert (one.text, one.value, one.isolated) == (text, None, True), where
                elif isinstance(value, str) or pd.isna(value):
                    assert (one.text, one.value) == (NOT_KNOWN, ""), where
                else:
                    kind = UNITS.get(row["unit"], "") if column == "value" else column
                    number = value.timestamp() if hasattr(value, "timestamp") else value
                    assert float(one.value or "nan") == pytest.approx(number, rel=1e-9), where
                    assert one.text == cell(kind, value), where
                    compared += 1
    assert compared > 1000


def test_a_card_has_its_share_of_what_is_known(whole: tuple[str, dict[str, Table]]) -> None:
    text, tables = whole
    totals = tables["totals"].rows.set_index("figure")
    cards = text[text.index('<dl class="cards">') : text.index("</dl>")]
    for name, share in (
        ("GPU-hours wasted, by both", "share wasted, by both"),
        ("GPU-hours of GPUs never used", "share never used"),
    ):
        assert 0 < totals.unknown[name] == totals.unknown[share] < totals.attempts[name]
        assert totals.value[share] > 100 * totals.value[name] / totals.value["GPU-hours"]
        assert f"<dd>{percent(totals.value[share])} of those known</dd>" in cards


def test_each_part_says_what_it_rests_on(whole: tuple[str, dict[str, Table]]) -> None:
    text, tables = whole
    assert len(re.findall(r"<figure>", text)) == 11
    for table in tables.values():
        lost = f"of {table.unknown:,} not known" if table.unknown else "all known"
        body = text[text.index(f'<section id="{table.name}"') :]
        assert f"This rests on {table.attempts:,} attempts, {lost}." in body[: body.index("</section>")]


def test_bars_are_as_long_as_the_numbers(whole: tuple[str, dict[str, Table]]) -> None:
    text, tables = whole
    drawn = text[text.index('<desc id="outcomes-wide-d">') :]
    drawn = drawn[: drawn.index("</svg>")]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    hours = list(tables["outcomes"].rows.gpu_hours)
    assert len(widths) == len(hours) > 4
    for width, one in zip(widths, hours, strict=True):
        assert width == pytest.approx(max(max(widths) * one / max(hours), 1.5), abs=0.11)


def test_both_drawings_of_a_plot_are_named_and_tell_the_numbers(reader: Reader) -> None:
    plots = attributes(reader, "svg")
    assert len(plots) == 22
    names = [str(named[key]) for named in plots for key in ("aria-labelledby", "aria-describedby")]
    ids = [named["id"] for _, named in reader.tags if "id" in named]
    assert {named["role"] for named in plots} == {"img"}
    assert set(names) <= set(ids) and len(ids) == len(set(ids))
    assert "completed: " in reader.texts["desc"]


def test_names_stay_text(whole: tuple[str, dict[str, Table]], reader: Reader) -> None:
    text, _ = whole
    assert {tag for tag, _ in reader.tags} <= set(TAGS.split())
    assert "\u202e" not in text and "\u2066" not in text and "\x1b" not in text and "\0" not in text
    assert reader.texts["title"].startswith('GPU audit of lab<b>"&?,')
    users = {row[0].text for row in reader.tables["by_user"]["tbody"]}
    assert {plain(name, 120) for name in HOSTILE} <= users
    assert max(map(len, users)) == 120


@pytest.mark.slow
@pytest.mark.parametrize("users", [ROWS, 5000])
def test_many_users_are_bounded_and_summed_up(frame: pd.DataFrame, users: int) -> None:
    text, tables = made(crowd(frame, users))
    reader = read(text)
    assert len(text.encode()) < 1.5e6
    for name in ("by_user", "wasted_by_user"):
        found, rows = reader.tables[name], tables[name].rows
        assert len(found["tbody"]) == ROWS and len(rows) == users
        assert bool(found["tfoot"]) == (users > ROWS)
        if not found["tfoot"]:
            continue
        rest = found["tfoot"][0]
        assert rest[0].text == "4,500 more" and len(rest) == len(rows.columns)
        for column in ("gpu_hours", "attempts"):
            place = list(rows.columns).index(column)
            shown = sum(float(row[place].value or "nan") for row in found["tbody"])
            assert shown + float(rest[place].value or "nan") == pytest.approx(rows[column].sum())
    assert ("4,500 more rows are only summed up here" in text) == (users > ROWS)


def test_pseudonyms_are_said(frame: pd.DataFrame) -> None:
    tables = audit(frame, since=SINCE, until=UNTIL, split=())
    about = type(ABOUT)(ABOUT.cluster, SINCE, UNTIL, pseudonyms=True)
    assert "have pseudonyms" in page(about, tables) and "have pseudonyms" not in page(ABOUT, tables)


def unknown_use(frame: pd.DataFrame) -> Any:
    idle = pd.array([None] * len(frame), "Int32")
    return frame.assign(utilisation_mean=np.nan, use_known=False, gpus_known=0, gpus_idle=idle)


def unknown_starts(frame: pd.DataFrame) -> Any:
    never = pd.DatetimeIndex([None] * len(frame), tz="UTC")
    return frame.assign(started=never, wait_s=np.nan, run_s=np.nan, gpu_hours=np.nan, run_known=False)


CASES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "one attempt": lambda frame: frame.head(1),
    "no GPUs": lambda frame: frame.assign(gpus=0, gpu_hours=0.0, utilisation_mean=np.nan),
    "unknown sizes": lambda frame: frame.assign(
        gpus=pd.array([pd.NA] * len(frame), "Int32"), gpu_hours=np.nan
    ),
    "no failures": lambda frame: frame[frame.outcome == "completed"],
    "failures alone": lambda frame: frame[frame.outcome == "failed"],
    "utilisation unknown": unknown_use,
    "times unknown": unknown_starts,
    "no names": lambda frame: frame.assign(
        **{name: frame[name].cat.set_categories([]) for name in ("user", "account", "reason", "gpu_type")}
    ),
    "no waits": lambda frame: frame.assign(wait_s=0.0, run_s=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_breaks_nothing(frame: pd.DataFrame, case: str) -> None:
    text, _ = made(CASES[case](frame.head(200)))
    for tag, named in read(text).tags:
        for name, value in named.items():
            assert not re.search(r"\b(nan|inf)\b", str(value)), (tag, name, value)
    assert not re.search(r">[^<]*\bnan\b[^<]*<", text), "what is not known is n/a"


def no_nodes(frame: pd.DataFrame) -> Any:
    return frame.assign(nodes=pd.array([pd.NA] * len(frame), "Int32"))


def no_node_of_some(frame: pd.DataFrame) -> Any:
    """Of eight attempts on two GPUs: three on one node, one on two, of four nobody knows."""
    some = frame[frame["gpus"] > 1].head(8)
    nodes = pd.array([1, 1, 1, 2, *[pd.NA] * 4], "Int32")
    return some.assign(gpus=pd.array([2] * 8, "Int32"), nodes=nodes, partition=pd.Categorical(["a"] * 8))


def no_hours_of_failures(frame: pd.DataFrame) -> Any:
    failed = frame.outcome.isin(["failed", "timeout", "preempted"])
    return frame.assign(gpu_hours=frame.gpu_hours.mask(failed))


@pytest.mark.parametrize(
    ("case", "table", "said"),
    [
        (unknown_starts, "outcomes", "There are no GPU-hours that are known."),
        (CASES["no GPUs"], "outcomes", "There are no GPU-hours that are known."),
        (no_hours_of_failures, "outcomes", "to attempts that completed, n/a to failed ones."),
        (CASES["no failures"], "outcomes", "100 % of the GPU-hours went to attempts that completed, 0 % to"),
        (
            CASES["failures alone"],
            "outcomes",
            "0 % of the GPU-hours went to attempts that completed, 100 % to",
        ),
        (no_nodes, "locality", "Of no attempt on several GPUs is it known how many nodes it ran on."),
        (
            no_node_of_some,
            "locality",
            "75 % of the attempts on several GPUs ran on as few nodes as could hold",
        ),
        (no_node_of_some, "locality", " Of 4 attempts it is not known."),
    ],
)
def test_no_share_is_told_of_what_is_not_known(
    frame: pd.DataFrame, case: Callable[[pd.DataFrame], Any], table: str, said: str
) -> None:
    text, _ = made(case(frame.head(200)), split=())
    body = text[text.index(f'<section id="{table}"') :]
    finding = body[body.index('<p class="finding">') : body.index('<p class="rests">')]
    assert said in finding, finding


def test_a_week_of_which_nothing_is_known_is_a_gap(frame: pd.DataFrame) -> None:
    short = frame[frame.run_s < DAY].copy()
    begin = (short.started - pd.Timestamp(SINCE, unit="s", tz="UTC")).dt.total_seconds()
    short.loc[begin.between(99 * DAY, 121 * DAY), "utilisation_mean"] = np.nan
    text, tables = made(short)
    gaps = int(tables["utilisation_over_time"].rows.utilisation_percent.isna().sum())
    assert gaps == 2 and f"Of {gaps} weeks it is not known" in text
    for name in ("wide", "narrow"):
        drawn = text[text.index(f'id="utilisation_over_time-{name}-d"') :]
        drawn = drawn[: drawn.index("</svg>")]
        assert drawn.count('class="gap"') == gaps and drawn.count("<polyline") == 2
