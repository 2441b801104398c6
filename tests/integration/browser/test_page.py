"""The page of a run in a real browser: mouse, keyboard, phone, dark, print; and hostile texts that
run nothing."""

from __future__ import annotations

import contextlib

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from pytest_vllm_regress.cases.results import RunResult
from pytest_vllm_regress.output.pages.run_page import page, pages
from tests.helpers import hostile
from tests.integration.browser.conftest import Show, active, low_contrast, requests_of
from tests.unit.output.test_formats import CASES, RUN

OPEN_ALL = "document.querySelectorAll('details').forEach((element) => { element.open = true; })"


def test_a_click_opens_the_evidence_and_nothing_is_loaded(shown: Show) -> None:
    browser = shown(page(RUN, CASES))
    cell = browser.find_element(By.CSS_SELECTOR, "td .REGRESSED")
    body = browser.find_element(By.ID, str(cell.get_attribute("href")).partition("#")[2])
    assert not body.is_displayed()
    cell.click()
    WebDriverWait(browser, 10).until(lambda _: body.is_displayed())
    assert "because" in body.text
    assert requests_of(browser) == [browser.current_url.partition("#")[0]]  # the page itself
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_the_summary_leads_to_what_is_unexpected(shown: Show) -> None:
    browser = shown(page(RUN, CASES))
    browser.find_element(By.LINK_TEXT, "vllm-17173 in vllm-0.9.2").click()
    WebDriverWait(browser, 10).until(lambda _: active(browser) == "case-vllm-17173.vllm-0.9.2.sim")
    assert "REGRESSED" in browser.switch_to.active_element.text


def test_keyboard_alone_goes_there_and_back(shown: Show) -> None:
    browser = shown(page(RUN, CASES))
    for _ in range(30):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if active(browser) == "#case-vllm-17173":
            break
    assert active(browser) == "#case-vllm-17173"
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    cell = active(browser)
    assert cell.startswith("#case-vllm-17173.")
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda _: active(browser) == cell[1:])
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    WebDriverWait(browser, 10).until(lambda _: active(browser) == cell)
    assert not browser.find_element(By.ID, cell[1:]).is_displayed()


def test_the_folder_leads_from_the_overview_to_evidence_and_environment(shown: Show) -> None:
    browser = shown(pages(RUN, CASES))
    browser.find_element(By.CSS_SELECTOR, "td .REGRESSED").click()
    WebDriverWait(browser, 10).until(lambda _: active(browser) == "vllm-0.9.2.sim")
    browser.find_element(By.LINK_TEXT, "Environment vllm-0.9.2").click()
    WebDriverWait(browser, 10).until(lambda _: browser.title == "vllm-0.9.2")
    browser.find_element(By.LINK_TEXT, "Overview").click()
    WebDriverWait(browser, 10).until(lambda _: browser.title == "vLLM failures by version")
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("run", [RUN, hostile.run()], ids=["plain", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(shown: Show, run: RunResult) -> None:
    browser = shown(page(run, CASES), width=375)
    browser.execute_script(OPEN_ALL)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375


def test_hostile_texts_run_nothing(shown: Show) -> None:
    browser = shown(page(hostile.run(), CASES))
    browser.execute_script(OPEN_ALL)
    assert browser.title == "vLLM failures by version"
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert hostile.SCRIPT in browser.find_element(By.TAG_NAME, "main").text
    assert len(requests_of(browser)) == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(shown: Show, dark: bool) -> None:
    browser = shown(page(hostile.run(), CASES), dark=dark)
    browser.execute_script(OPEN_ALL)
    assert low_contrast(browser) == []
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(15, 20, 25)") == dark


def test_print_shows_the_evidence(shown: Show) -> None:
    browser = shown(page(RUN, CASES))
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert all(
        element.is_displayed()
        for element in browser.find_elements(By.CSS_SELECTOR, ".evidence .body")
    )
    assert len(browser.print_page()) > 10_000


def test_copy_brings_the_command(shown: Show) -> None:
    browser = shown(page(RUN, CASES))
    browser.execute_script(OPEN_ALL)
    with contextlib.suppress(
        WebDriverException
    ):  # a page from a file may have no clipboard: then the text is selected
        browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    button = browser.find_element(By.CSS_SELECTOR, "button[aria-label='Copy the command']")
    button.click()
    WebDriverWait(browser, 10).until(lambda _: button.text in ("Copied", "Selected"))
