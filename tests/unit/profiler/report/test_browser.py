"""The page of an audit in a real Chromium: asks nobody for anything, sorts, filters, fits, prints, and can be heard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, sync_playwright

from gsub.shadow_page import page as shadow_page
from profiler.report.advice import advice
from tests.paths import REPOSITORY
from tests.requirements import CHROMIUM, find_program, require
from tests.unit.profiler.report.history import SINCE
from tests.unit.profiler.report.pages import HOSTILE, crowd, history, made
from tests.unit.profiler.report.test_shadow import page_of, recommended
from tests.unit.profiler.store.empty import empty_store

Colours: TypeAlias = Literal["light", "dark"]
LABELS = """all => all.map(one => {
    const box = one.getBoundingClientRect(), plot = one.closest("svg").getBoundingClientRect();
    return [one.textContent, box.height, box.left - plot.left, plot.right - box.right];
})"""
"""Of each label the text, the height, and how far it is from the edges of its plot."""
LONG = 120_000.0
"""Milliseconds that a step may take on a machine that has much else to do."""
A4 = 688
"""CSS pixels between the margins of the sheet."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of the machine's; where there is none, Debian's, which root gets from Debian."""
    require("chromium")
    # No sandbox for root: what it opens is our own file
    options = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_program(*CHROMIUM), args=options, timeout=LONG)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of few users, with all that there is on a page, of more, and of more than a page has."""
    folder = tmp_path_factory.mktemp("pages")
    frame = history(folder, 1200)
    frame.loc[frame["user"] == HOSTILE[0], "utilisation_mean"] = float("nan")
    users = frame["user"].value_counts().index
    few, some = (frame[frame["user"].isin([*HOSTILE[:9], *users[:count]])] for count in (8, 80))
    some.loc[some.index[0], "user"] = None
    (folder / "few.html").write_text(made(few, split=("user",), until=SINCE + 100 * 86400)[0])
    (folder / "some.html").write_text(made(some)[0])
    (folder / "many.html").write_text(made(crowd(frame, 700), split=("user",))[0])
    return folder


@contextmanager
def shown(
    browser: Browser, file: Path, *, width: int = 1440, colours: Colours = "light", script: bool = True
) -> Iterator[Page]:
    """The page, with each request but that for the file stopped; none may be made, and nothing may be complained of."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=colours,
        java_script_enabled=script,
    )
    asked: list[str] = []
    said: list[str] = []

    def route(one: Route) -> None:
        asked.append(one.request.url)
        if one.request.url == file.as_uri():
            one.continue_()
        else:
            one.abort()

    context.route("**/*", route)
    context.set_default_timeout(LONG)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert (asked, said) == ([file.as_uri()], [])


def values(page: Page, table: str, column: int) -> list[str]:
    """The column's values in the rows that are shown."""
    found: list[str] = page.eval_on_selector_all(
        f"#{table}-table tbody tr:not([hidden])",
        f"rows => rows.map(row => row.cells[{column}].dataset.value ?? row.cells[{column}].textContent)",
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_and_has_no_fault_of_accessibility(browser: Browser, folder: Path, colours: Colours) -> None:
    with shown(browser, folder / "few.html", colours=colours) as page:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground.strip("rgb()").split(","))) > 380) == (colours == "light")
        # The width that is looked at last is the one whose faults are looked for
        widths = (1440, 375) if colours == "light" else (375, 1440)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            kind = "narrow" if width == 375 else "wide"
            assert page.locator(f"svg.{kind}:visible").count() == 11 == page.locator("svg:visible").count()
            labels = page.eval_on_selector_all(f"svg.{kind} text", LABELS)
            assert min(height for _, height, _, _ in labels) > 9, "no label is too small to be read"
            assert [text for text, _, left, right in labels if left < -1 or right < -1] == []
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
        assert len(found["passes"]) > 25, "it has looked"
        assert not [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found["violations"]]
        assert page.evaluate("window.hacked") is None


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_of_shadows_fits_and_has_no_fault(browser: Browser, folder: Path, colours: Colours) -> None:
    store = empty_store(f"sqlite:///{folder / f'shadow-{colours}.db'}")
    recommended().write(store)
    found = page_of(store)
    store.close()
    file = folder / f"shadow-{colours}.html"
    file.write_text(shadow_page(found, advice(found, None)))
    with shown(browser, file, colours=colours) as page:
        for width in (1440, 375) if colours == "light" else (375, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("svg:visible").count() == 1 and page.locator("table").count() > 3
        looked = Axe().run(page, options={"resultTypes": ["violations"]}).response
        assert len(looked["passes"]) > 20, "it has looked"
        assert not [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in looked["violations"]]
        heads = page.locator("#overview-table thead button")
        heads.nth(2).click()
        assert values(page, "overview", 2)[0] == "79"


@pytest.mark.slow
def test_a_click_sorts_and_so_does_the_keyboard(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "some.html") as page:
        table = page.locator("#by_user-table")
        heads = [one.strip() for one in table.locator("thead th").all_inner_texts()]
        hours, use = heads.index("GPU-hours"), heads.index("utilisation")
        before = values(page, "by_user", 0)
        button = table.get_by_role("button", name="utilisation")
        button.click()
        found = values(page, "by_user", use)
        known = [float(one) for one in found if one]
        assert "" in found and found.index("") == len(known) > 50, "what is not known comes last"
        assert known == sorted(known, reverse=True) and known != [float(one) for one in found[::-1] if one]
        assert table.locator("[aria-sort]").count() == 1
        assert table.locator("th").nth(use).get_attribute("aria-sort") == "descending"
        page.keyboard.press("Enter")
        found = values(page, "by_user", use)
        known = [float(one) for one in found if one]
        assert known == sorted(known) and found.index("") == len(known), "last whichever way"
        assert table.locator("th").nth(use).get_attribute("aria-sort") == "ascending"
        # From one head to the next by Tab, and Space as Enter
        for _ in range(use - hours):
            page.keyboard.press("Shift+Tab")
        page.keyboard.press("Space")
        numbers = [float(one) for one in values(page, "by_user", hours)]
        assert all(one >= other for one, other in pairwise(numbers)) and len(numbers) == len(before)
        table.get_by_role("button", name="user", exact=True).click()
        names = values(page, "by_user", 0)
        assert sorted(names) == sorted(before) and names != before
        plain = [name for name in names if name.startswith("user")]
        assert plain == sorted(plain) and len(plain) > 50
        assert names[-1] == "", "nobody's name is among no others"
        page.keyboard.press("Enter")
        turned = values(page, "by_user", 0)
        assert turned[-1] == "" and turned[:-1] == names[-2::-1]
        waits = page.locator("#waiting-table")
        for _ in range(2):
            waits.locator("thead button").first.click()
            assert "all" not in values(page, "waiting", 0), "that of all is no size"
            assert waits.locator("tr").last.inner_text().startswith("all")


@pytest.mark.slow
def test_the_rest_stays_below_and_paper_has_the_first_ones(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "many.html") as page:
        page.locator("#by_user-table").get_by_role("button", name="GPU-hours").click()
        assert page.locator("#by_user-table tr").last.inner_text().startswith("200 more")
        assert page.locator("#by_user-table tbody tr").count() == 500
        page.emulate_media(media="print")
        assert page.locator("#by_user-table tbody tr:visible").count() == 60
        assert "the file has 500" in page.locator("#by_user .printed").inner_text()


@pytest.mark.slow
def test_typing_filters(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "some.html") as page:
        whole = len(values(page, "by_user", 0))
        label = page.locator("#by_user label")
        label.click()
        assert page.evaluate("document.activeElement.id") == "by_user-filter", "the label belongs to it"
        page.keyboard.type("USER01")
        found = values(page, "by_user", 0)
        assert 1 < len(found) < whole and all("user01" in name for name in found)
        assert page.locator("#by_user [role=status]").inner_text() == f"{len(found)} of {whole} rows"
        page.locator("#by_user-filter").fill("مستخدم")
        assert values(page, "by_user", 0) == [HOSTILE[5]]
        row = page.locator("#by_user-table tbody tr", has_text="user01").first
        name, jobs = row.locator("> *").all_inner_texts()[:2]
        page.locator("#by_user-filter").fill(f"{name} {jobs}")
        assert name in values(page, "by_user", 0)
        page.locator("#by_user-filter").fill(name + jobs)
        assert values(page, "by_user", 0) == [], "no word goes from one cell into the next"
        page.locator("#by_user-filter").fill("nobody has this")
        assert values(page, "by_user", 0) == []
        page.locator("#by_user-filter").fill("")
        assert len(values(page, "by_user", 0)) == whole
        assert page.locator("#outcomes .filter").is_hidden(), "short tables need none"


@pytest.mark.slow
def test_all_is_there_without_a_script(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "some.html", script=False) as page:
        assert page.locator("table").count() == 17 and page.locator("button, .filter:visible").count() == 0
        assert page.locator("#by_user-table tbody tr:visible").count() > 70
        assert page.locator("svg:visible").count() == 11


@pytest.mark.slow
def test_names_are_shown_as_they_are_and_the_policy_stands_behind(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "some.html") as page:
        assert page.get_by_role("rowheader", name=HOSTILE[0]).first.is_visible()
        assert page.locator("img, main script, svg[onload]").count() == 0
        cell = page.get_by_role("rowheader", name=HOSTILE[5]).first
        assert cell.locator("bdi").evaluate("one => getComputedStyle(one).unicodeBidi") == "isolate"
    context = browser.new_context()
    context.set_default_timeout(LONG)
    tab = context.new_page()
    tab.goto((folder / "few.html").as_uri())
    # Were a name to come through nevertheless
    tab.evaluate("""new Promise(done => {
        document.addEventListener("securitypolicyviolation", done, {once: true});
        document.body.insertAdjacentHTML("beforeend", '<p onclick="window.hacked=1" id="in"></p>');
        document.getElementById("in").click();
    })""")
    assert tab.evaluate("window.hacked") is None
    context.close()


@pytest.mark.slow
def test_paper_cuts_nothing(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "some.html", width=A4, colours="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= A4
        cut = page.eval_on_selector_all(
            ".scroll, section, figure",
            "all => all.filter(one => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)"
            ".map(one => one.id || one.className || one.tagName)",
        )
        assert cut == []
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert page.locator("nav").is_hidden() and page.locator("svg.wide:visible").count() == 11
        paper = page.pdf(format="A4")
        assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") > 4


def test_a_chromium_of_any_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(*CHROMIUM) is None
    for name in reversed(CHROMIUM):
        (tmp_path / name).touch(mode=0o755)
        assert find_program(*CHROMIUM) == str(tmp_path / name)
    page = (REPOSITORY / "docs/testing.md").read_text()
    assert all(f"`{name}`" in page for name in CHROMIUM)
