"""The page in a real browser: mouse, keyboard, phone, dark, print; and hostile texts that run nothing."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from pytest_vllm_regress.audit.releases import overview
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.reporting.html import page
from tests.helpers import ROOT, hostile
from tests.unit.reporting.test_formats import RUN

CASES = load_all_cases(ROOT / "cases")
RELEASES = [release.to_json() for release in overview(CASES, ROOT / "locks")]
# Without the network flags a browser asks its maker's servers first.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser: install chromium and its chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def shown(browser: webdriver.Chrome, tmp_path: Path) -> Any:
    """Shows a page: ``shown(html, width=1200, dark=False)``."""

    def show(html: str, width: int = 1200, dark: bool = False) -> webdriver.Chrome:
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        browser.get("about:blank")  # the browser's own first page loads this and that
        browser.get_log("browser")  # type: ignore[no-untyped-call]
        browser.get_log("performance")  # type: ignore[no-untyped-call]
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )
        browser.get(f"file://{tmp_path}/page.html")
        return browser

    return show


def requests_of(browser: webdriver.Chrome) -> list[str]:
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))  # type: ignore[no-untyped-call]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def active(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.activeElement.id"))


def test_a_click_opens_the_evidence_and_nothing_is_loaded(shown: Any) -> None:
    browser = shown(page(RUN, CASES))
    cell = browser.find_element(By.PARTIAL_LINK_TEXT, "REGRESSED")
    body = browser.find_element(By.ID, cell.get_attribute("href").partition("#")[2])
    assert not body.is_displayed()
    cell.click()
    WebDriverWait(browser, 10).until(lambda _: body.is_displayed())
    assert "because" in body.text
    assert requests_of(browser) == [browser.current_url.partition("#")[0]]  # the page itself
    assert browser.get_log("browser") == []


def test_keyboard_alone_goes_there_and_back(shown: Any) -> None:
    browser = shown(page(RUN, CASES))
    for _ in range(30):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if active(browser).startswith("cell-"):
            break
    cell = active(browser)
    assert cell.startswith("cell-evidence-")
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda _: active(browser) == cell.removeprefix("cell-"))
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    WebDriverWait(browser, 10).until(lambda _: active(browser) == cell)
    assert not browser.find_element(By.ID, cell.removeprefix("cell-")).is_displayed()


@pytest.mark.parametrize("texts", [RUN, hostile.run()], ids=["plain", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(shown: Any, texts: Any) -> None:
    browser = shown(page(texts, CASES, RELEASES), width=375)
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375


def test_hostile_texts_run_nothing(shown: Any) -> None:
    browser = shown(page(hostile.run(), CASES))
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert browser.title == "vLLM failures by version"
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert hostile.SCRIPT in browser.find_element(By.TAG_NAME, "main").text
    assert len(requests_of(browser)) == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(shown: Any, dark: bool) -> None:
    browser = shown(page(hostile.run(), CASES), dark=dark)
    low = browser.execute_script(CONTRAST)
    assert low == [], low
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 20, 25)") == dark


def test_everything_has_a_name(shown: Any) -> None:
    browser = shown(page(RUN, CASES, RELEASES))
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {"link", "button", "columnheader", "rowheader", "heading", "table", "DisclosureTriangle"}
    roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")]
    assert {"table", "columnheader", "rowheader", "heading", "link"} <= {role for role, _ in roles}
    assert [role for role, name in roles if role in named and not name.strip()] == []


def test_print_shows_the_evidence(shown: Any) -> None:
    browser = shown(page(RUN, CASES))
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert all(element.is_displayed() for element in browser.find_elements(By.CSS_SELECTOR, ".evidence .body"))
    assert len(browser.print_page()) > 10_000


def test_copy_brings_the_command(shown: Any) -> None:
    browser = shown(page(RUN, CASES))
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    with contextlib.suppress(WebDriverException):  # a page from a file may have no clipboard: then the text is selected
        browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    button = browser.find_element(By.CSS_SELECTOR, "button[aria-label='Copy the command']")
    button.click()
    WebDriverWait(browser, 10).until(lambda _: button.text in ("Copied", "Selected"))


# WCAG 2's ratio for every element that holds text itself, against the first background behind it: 4.5 is AA.
CONTRAST = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(channel);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
const ratio = (element) => {
  const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
return [...document.querySelectorAll("body *")]
  .filter((each) => !["SCRIPT", "STYLE"].includes(each.tagName))
  .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((each) => [each.tagName + "." + each.className, ratio(each)])
  .filter(([, found]) => found < 4.5);
"""
