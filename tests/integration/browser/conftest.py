"""A real browser, headless, for the tests of pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

Show = Callable[..., webdriver.Chrome]
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
    binary, driver = (
        shutil.which("chromium") or shutil.which("google-chrome"),
        shutil.which("chromedriver"),
    )
    if binary is None or driver is None:
        pytest.skip(
            "no browser: install chromium and its chromedriver (Debian: chromium, chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def shown(browser: webdriver.Chrome, tmp_path: Path) -> Show:
    """Shows a page, or one of several:

    ``shown(html, width=1200, dark=False)``, ``shown(files, page="index.html")``.
    """

    def show(
        content: str | Mapping[str, str | bytes],
        width: int = 1200,
        dark: bool = False,
        page: str = "index.html",
    ) -> webdriver.Chrome:
        files = {page: content} if isinstance(content, str) else content
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
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
        browser.get(f"file://{tmp_path}/{page}")
        if browser.execute_script("return document.querySelector('.filters') !== null"):
            visible = "return !document.querySelector('.filters').hidden"
            WebDriverWait(browser, 10).until(lambda _: browser.execute_script(visible))
        return browser

    return show


def requests_of(browser: webdriver.Chrome) -> list[str]:
    """Return the addresses that the page loaded."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))  # type: ignore[no-untyped-call]
    return [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]


def active(browser: webdriver.Chrome) -> str:
    """Return id and address of the element with the focus."""
    return str(
        browser.execute_script(
            "const e = document.activeElement; return e.id || e.getAttribute('href') || ''"
        )
    )


def low_contrast(browser: webdriver.Chrome) -> list[object]:
    """Return the elements whose text is hard to read, with the ratio."""
    elements: list[object] = browser.execute_script(CONTRAST)
    return elements


# WCAG 2's ratio for every element that holds text itself, against the first background behind it:
# 4.5 is AA.
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
