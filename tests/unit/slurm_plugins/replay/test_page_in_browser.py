"""The page of a replay in a real Chromium: asks nobody for anything, fits, and has no fault of accessibility."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from gsub.cli import main
from tests.unit.profiler.report.test_browser import LABELS, browser, shown

pytestmark = pytest.mark.slow

__all__ = ["browser"]  # a fixture

NAME = '<img src=x onerror="window.hacked=1">\u202egnp.'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    rows = [
        f"2017-10-{1 + n // 24:02} {n % 24:02}:00:00,{3600 * (1 + n % 7)},{(1, 2, 8, 16)[n % 4]},0,{NAME}"
        for n in range(200)
    ]
    trace = folder / f"{NAME.replace('/', '')}.csv"
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows), encoding="utf-8")
    made = folder / "replay.html"
    policies = [word for policy in ("fifo", "fifo+skip", "fifo+skip+spread") for word in ("--policy", policy)]
    assert main(["admin", "replay", str(trace), "--nodes", "3x8/2", *policies, "--html", str(made)]) == 0
    return made


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_fetches_nothing_and_can_be_heard(browser: Browser, page: Path, colours) -> None:
    with shown(browser, page, colours=colours) as tab:
        for width in (1440, 375) if colours == "light" else (375, 1440):
            tab.set_viewport_size({"width": width, "height": 900})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            kind = "narrow" if width == 375 else "wide"
            assert tab.locator(f"svg.{kind}:visible").count() == 5 == tab.locator("svg:visible").count()
            labels = tab.eval_on_selector_all(f"svg.{kind} text", LABELS)
            assert min(height for _, height, _, _ in labels) > 9, "no label is too small to be read"
            assert [text for text, _, left, right in labels if left < -1 or right < -1] == []
        found = Axe().run(tab, options={"resultTypes": ["violations"]}).response
        assert len(found["passes"]) > 20, "it has looked"
        assert not [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found["violations"]]
        assert tab.evaluate("window.hacked") is None and tab.locator("img").count() == 0
        table = tab.locator("#waits-table")
        table.get_by_role("button", name="mean").click()
        assert table.locator("[aria-sort]").count() == 1
