"""The site in a real browser: filters, comparison, keyboard, links, phone, dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from pytest_vllm_regress.answers.audit.matching import Severity, severity
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.output.pages.knowledge import Knowledge, release_of
from tests.helpers import ROOT
from tests.integration.browser.conftest import Show, active, low_contrast, requests_of
from tests.unit.output.test_formats import CASES

PAGES = [
    "index.html",
    "cases/vllm-17173.html",
    "releases/0.8.4.html",
    "releases/index.html",
    "docs/index.html",
]


def visible_rows(browser: webdriver.Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('#table tbody tr:not([hidden]) th.case a')].map((link) => link.textContent)"
    rows: list[str] = browser.execute_script(script)
    return rows


def choose(browser: webdriver.Chrome, field: str, text: str) -> None:
    Select(browser.find_element(By.ID, field)).select_by_visible_text(text)


def heads(browser: webdriver.Chrome) -> list[str]:
    cells = browser.find_elements(By.CSS_SELECTOR, "#table thead th")
    return [cell.text for cell in cells if cell.is_displayed()]


def boxes(browser: webdriver.Chrome, selector: str) -> list[dict[str, float]]:
    """Return the places of elements on the screen."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().toJSON())"
    found: list[dict[str, float]] = browser.execute_script(script, selector)
    return found


def groups(browser: webdriver.Chrome) -> dict[str, int]:
    """Return the number in each visible heading of the table."""
    script = "return [...document.querySelectorAll('#table tbody:not([hidden]) .stay')].map((e) => e.textContent)"
    return {
        name: int(count)
        for name, count in (text.rsplit(maxsplit=1) for text in browser.execute_script(script))
    }


def test_filters_by_text_family_severity_and_verdict(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    everything = visible_rows(browser)
    assert len(everything) == len(CASES)
    browser.find_element(By.ID, "filter-text").send_keys("17173 ONE")
    assert visible_rows(browser) == ["vllm-17173"]
    assert browser.find_element(By.ID, "filter-result").text == f"1 of {len(CASES)} cases"
    browser.find_element(By.ID, "filter-reset").click()
    assert visible_rows(browser) == everything

    choose(browser, "filter-family", "hang")
    assert set(visible_rows(browser)) == {case.id for case in CASES if case.family == "hang"}
    browser.find_element(By.ID, "filter-reset").click()
    choose(browser, "filter-severity", "leak")
    assert set(visible_rows(browser)) == {
        case.id for case in CASES if severity(case) is Severity.LEAK
    }
    browser.find_element(By.ID, "filter-reset").click()

    choose(browser, "filter-verdict", "NOT APPLICABLE")
    table = read_table(CASES)
    verdicts = {
        case.id: {
            entry.verdict for entry in table.of_case(case.id) if release_of(entry.environment)
        }
        for case in CASES
    }
    assert set(visible_rows(browser)) == {
        case_id for case_id, seen in verdicts.items() if Verdict.NOT_APPLICABLE in seen
    }
    choose(browser, "filter-verdict", "not expected")
    unexpected = {
        case_id
        for case_id, seen in verdicts.items()
        if not all(verdict.expected for verdict in seen)
    }
    assert set(visible_rows(browser)) == unexpected


def test_rows_are_twenty_pixels_high_and_head_and_cases_stay(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    browser.execute_script(
        "document.querySelectorAll('#table tr').forEach((e) => { e.style.contentVisibility = 'visible'; });"
        "document.getElementById('table').scrollTo(300, 900)"
    )
    assert {box["height"] for box in boxes(browser, "#table tbody tr:not(.group)")} == {20}
    (frame,) = boxes(browser, "#table")
    (head,) = boxes(browser, "#table thead")
    assert head["top"] == pytest.approx(frame["top"], abs=2)
    for box in boxes(browser, "#table th.case"):
        assert box["left"] == pytest.approx(frame["left"], abs=2)


def test_rows_are_grouped_by_severity_or_family(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    by_severity = Counter(map(severity, CASES))
    everything = visible_rows(browser)
    expected = {grade.value: by_severity[grade] for grade in Severity}
    assert list(groups(browser).items()) == list(expected.items())
    choose(browser, "group", "family")
    assert groups(browser) == Counter(case.family for case in CASES)
    assert list(groups(browser)) == sorted(groups(browser))
    choose(browser, "filter-family", "hang")
    assert list(groups(browser)) == ["hang"]
    choose(browser, "group", "severity")
    browser.find_element(By.ID, "filter-reset").click()
    assert list(groups(browser).items()) == list(expected.items())
    assert visible_rows(browser) == everything


def test_one_device_is_shown(shown: Show, site: Mapping[str, str | bytes]) -> None:
    browser = shown(site)
    script = (
        "return [...document.querySelectorAll('#table td a:not([hidden])')]"
        ".map((a) => [a.getAttribute('href').split('/').at(-1), a.textContent])"
    )
    everything = browser.execute_script(script)
    choose(browser, "device", "cpu")
    knowledge = Knowledge(CASES, read_table(CASES), ROOT / "locks")
    expected = {
        f"{case.id}.html#{entry.environment}.cpu": entry.verdict
        for case in CASES
        for entry in knowledge.recorded[case.id]
        if entry.device == "cpu" and release_of(entry.environment) in knowledge.releases
    }
    assert {
        href: Verdict[text.upper().replace(" ", "_")]
        for href, text in browser.execute_script(script)
    } == expected
    choose(browser, "filter-verdict", "NOT APPLICABLE")
    assert set(visible_rows(browser)) == {
        href.partition(".")[0] for href, v in expected.items() if v is Verdict.NOT_APPLICABLE
    }
    browser.find_element(By.ID, "filter-reset").click()
    assert browser.execute_script(script) == everything


def test_only_what_is_special_has_a_sign(shown: Show, site: Mapping[str, str | bytes]) -> None:
    agreed = 'class="R" href="cases/vllm-17173.html'  # in the records no devices disagree
    page = str(site["index.html"]).replace(agreed, agreed.replace("R", "R disputed", 1), 1)
    browser = shown({**site, "index.html": page})
    script = (
        "return [...document.querySelectorAll('#table td a')].filter((a) => "
        "getComputedStyle(a, '::after').content !== 'none').map((a) => a.className)"
    )
    assert set(browser.execute_script(script)) == {"I", "R disputed"}
    choose(browser, "filter-verdict", "devices disagree")
    assert visible_rows(browser) == ["vllm-17173"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_verdicts_can_be_told_without_colour(
    shown: Show, site: Mapping[str, str | bytes], dark: bool
) -> None:
    """Failing and passing differ by lightness, what is in range by stripes."""
    browser = shown(site, dark=dark)
    script = """
        const style = getComputedStyle(document.querySelector(`#table td a.${arguments[0]}`));
        const [r, g, b, alpha] = style.backgroundColor.match(/[\\d.]+/g).map(Number);
        return [style.backgroundImage, alpha === 0 ? null : 0.2126 * r + 0.7152 * g + 0.0722 * b];
    """
    (_, fails), (_, passes), (stripes, _), (_, lacks) = (
        browser.execute_script(script, code) for code in "RFGN"
    )
    assert abs(fails - passes) > 80
    assert "gradient" in stripes
    assert lacks is None


def test_the_newest_release_comes_first_if_asked(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    browser.find_element(By.ID, "newest").click()
    case, *releases = boxes(browser, "#table thead th")
    lefts = [box["left"] for box in releases]
    assert lefts == sorted(lefts, reverse=True)
    assert case["left"] < lefts[-1]
    browser.execute_script("document.querySelector('#table th.case a[href]').focus()")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert ".html#vllm-0.33.0." in active(browser)


def test_the_address_has_what_is_chosen(shown: Show, site: Mapping[str, str | bytes]) -> None:
    browser = shown(site)
    choose(browser, "group", "family")
    choose(browser, "device", "cpu")
    choose(browser, "compare-before", "0.18.0")
    choose(browser, "compare-after", "0.20.0")
    browser.find_element(By.ID, "filter-text").send_keys("the")
    rows, chosen = visible_rows(browser), browser.current_url
    assert chosen.endswith("#text=the&before=0.18.0&after=0.20.0&device=cpu&group=family")
    assert 0 < len(rows) < len(CASES)
    browser.get("about:blank")
    browser.get(chosen)
    WebDriverWait(browser, 10).until(lambda _: visible_rows(browser) == rows)
    assert heads(browser) == ["Case", "0.18.0", "0.20.0"]
    browser.execute_script("document.querySelector('.skip').click()")
    assert visible_rows(browser) == rows
    choose(browser, "group", "severity")
    browser.find_element(By.ID, "filter-reset").click()
    assert browser.current_url == chosen.partition("#")[0]


def test_a_reader_goes_to_the_page_of_a_release(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    Select(browser.find_element(By.CSS_SELECTOR, "#yours select")).select_by_visible_text("0.8.4")
    WebDriverWait(browser, 10).until(lambda _: browser.title.startswith("vLLM 0.8.4: "))


def test_a_phone_shows_one_release_in_words(shown: Show, site: Mapping[str, str | bytes]) -> None:
    browser = shown(site, width=375)
    assert heads(browser) == ["Case", "0.33.0"]
    browser.find_element(By.ID, "filter-text").send_keys("vllm-17173")
    row = browser.find_element(By.CSS_SELECTOR, "#table tbody tr:not([hidden], .group)")
    (title,) = [case.title for case in CASES if case.id == "vllm-17173"]
    browser.execute_script("arguments[0].scrollIntoView()", row)
    assert browser.execute_script("return document.querySelector('.chart').scrollLeft") > 0
    assert row.text.split("\n") == ["vllm-17173", title, "fixed"]
    choose(browser, "release", "0.8.4")
    assert heads(browser) == ["Case", "0.8.4"]
    assert row.text.endswith("reproduced")
    browser.find_element(By.ID, "filter-text").clear()
    choose(browser, "filter-verdict", "REPRODUCED")
    knowledge = Knowledge(CASES, read_table(CASES), ROOT / "locks")
    assert set(visible_rows(browser)) == {
        case.id
        for case in CASES
        if any(
            entry.verdict is Verdict.REPRODUCED
            for entry in knowledge.states(case)["0.8.4"].recorded
        )
    }


def test_two_columns_are_compared(shown: Show, site: Mapping[str, str | bytes]) -> None:
    browser = shown(site)
    choose(browser, "compare-before", "0.8.4")
    choose(browser, "compare-after", "0.13.0")
    knowledge = Knowledge(CASES, read_table(CASES), ROOT / "locks")
    failing = {
        name: {case.id for case in CASES if knowledge.states(case)[name].failing}
        for name in ("0.8.4", "0.13.0")
    }
    effects = {
        "breaks": failing["0.13.0"] - failing["0.8.4"],
        "leaves": failing["0.13.0"] & failing["0.8.4"],
        "fixes": failing["0.8.4"] - failing["0.13.0"],
    }
    counts = ", ".join(f"{name} {len(ids)}" for name, ids in effects.items())
    assert browser.find_element(By.ID, "filter-result").text == f"0.8.4 to 0.13.0: {counts}"
    for name, ids in effects.items():
        script = f"return [...document.querySelectorAll('tr[data-change={name}]:not([hidden]) th a')].map((a) => a.textContent)"
        assert set(browser.execute_script(script)) == ids
    counted = {name: len(ids) for name, ids in effects.items()}
    assert list(groups(browser).items()) == list(counted.items())  # what breaks comes first
    assert heads(browser) == ["Case", "0.8.4", "0.13.0"]
    (frame,) = boxes(browser, "#table")
    assert max(box["right"] for box in boxes(browser, "#table thead th.on")) <= frame["right"]
    browser.find_element(By.ID, "filter-reset").click()
    assert len(visible_rows(browser)) == len(CASES)
    assert [*groups(browser)] == [grade.value for grade in Severity]


def test_the_keyboard_moves_between_verdicts_and_opens_one(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    assert active(browser) == "filter-text"
    browser.switch_to.active_element.send_keys("17173")
    browser.execute_script(
        "document.querySelector('#table tbody:not([hidden]) tr:not([hidden]) th a').focus()"
    )
    assert active(browser) == "cases/vllm-17173.html"
    browser.switch_to.active_element.send_keys(Keys.END)
    assert active(browser) == "cases/vllm-17173.html#vllm-0.33.0.sim"
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)  # no row below
    for place in ("vllm-0.32.0.sim", "vllm-0.31.0.sim"):
        browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
        assert active(browser) == f"cases/vllm-17173.html#{place}"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda _: "cases/vllm-17173.html" in browser.current_url)


def test_one_link_of_the_table_is_in_the_order_of_tab(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#table tbody a[tabindex='0']")) == 1


def test_links_lead_from_a_case_to_a_release_and_back(
    shown: Show, site: Mapping[str, str | bytes]
) -> None:
    browser = shown(site, page="cases/vllm-17173.html")
    browser.find_element(By.CSS_SELECTOR, ".timeline a[href='../releases/0.8.4.html']").click()
    WebDriverWait(browser, 10).until(lambda _: browser.title.startswith("vLLM 0.8.4: "))
    browser.find_element(By.CSS_SELECTOR, "details summary").click()
    browser.find_element(By.LINK_TEXT, "vllm-17173").click()
    WebDriverWait(browser, 10).until(lambda _: browser.title.startswith("vllm-17173"))
    browser.find_element(By.LINK_TEXT, "Documentation").click()
    WebDriverWait(browser, 10).until(lambda _: browser.title == "Documentation")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(
    shown: Show, site: Mapping[str, str | bytes], page: str, dark: bool
) -> None:
    assert low_contrast(shown(site, page=page, dark=dark)) == []


@pytest.mark.parametrize("page", [*PAGES, "docs/how-to/compare-versions.html"])
def test_a_phone_needs_no_sideways_scrolling(
    shown: Show, site: Mapping[str, str | bytes], page: str
) -> None:
    browser = shown(site, width=375, page=page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("page", [*PAGES, "README.html"])
def test_a_page_loads_only_the_sites_own_files(
    shown: Show, site: Mapping[str, str | bytes], page: str
) -> None:
    browser = shown(site, page=page)
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    root = browser.current_url.removesuffix(page)
    assert [url for url in requests_of(browser) if not url.startswith(root)] == []
    pictures = "return [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"
    assert browser.execute_script(pictures) == []


@pytest.mark.parametrize("page", PAGES)
def test_everything_has_a_name(shown: Show, site: Mapping[str, str | bytes], page: str) -> None:
    browser = shown(site, page=page)
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {
        "link",
        "button",
        "columnheader",
        "rowheader",
        "heading",
        "table",
        "combobox",
        "searchbox",
        "image",
    }
    roles = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored")
    ]
    assert {"heading", "link"} <= {role for role, _ in roles}
    assert page != "index.html" or {"table", "columnheader", "rowheader", "cell"} <= {
        role for role, _ in roles
    }
    assert [role for role, name in roles if role in named and not name.strip()] == []


def test_the_box_of_a_page_searches_cases_diagnoses_and_fixes(
    site: Mapping[str, str | bytes], shown: Show
) -> None:
    browser = shown(site, page="releases/0.8.4.html")
    box = browser.find_element(By.CSS_SELECTOR, "nav input")
    box.send_keys("vllm-17173", Keys.ENTER)
    results = browser.find_element(By.ID, "results")
    assert [link.text for link in results.find_elements(By.TAG_NAME, "a")] == ["vllm-17173"]
    box = browser.find_element(By.CSS_SELECTOR, "nav input")
    assert active(browser) == "search"
    box.clear()
    box.send_keys("prefix cach")
    headings = [heading.text for heading in results.find_elements(By.TAG_NAME, "h2")]
    assert any(text.startswith("Fixes of vLLM, the newest first: 40 of ") for text in headings)
    box.clear()
    box.send_keys("<b>nothing of the kind")
    assert browser.find_element(By.ID, "found").text == "0 found" and results.text == ""
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
