"""Measure the pages in a real browser: sizes, first paint, and the time of a filter and of a
comparison.

    python benchmarks/pages.py [CASES RELEASES]

A made-up full table of 77 cases by 54 releases, each cell with the evidence of one test; and the
site of what is recorded. It needs chromium and its chromedriver, as the tests of the pages do.
Times are medians of 15 loads from a file. First paint is in seconds of the clock; a filter is in
processor time of the page's thread, and ends with the layout.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

from pytest_vllm_regress.cases.loading import default_cases_dir, load_all_cases
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.releases import known_releases
from pytest_vllm_regress.output.pages.run_page import page, write_pages
from pytest_vllm_regress.output.pages.site import write_site

LOADS = 15
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
)
PAINT = "const paint = performance.getEntriesByName('first-contentful-paint')[0]; return paint ? paint.startTime : null;"
CHANGE = """
const change = (id, value) => {
  const field = document.getElementById(id);
  field.value = value;
  field.dispatchEvent(new Event(field.matches("select") ? "change" : "input"));
  document.body.getBoundingClientRect();
  document.querySelector("#table tbody").getBoundingClientRect();
};
"""
TEXT = CHANGE + "change('filter-text', '17173');"
TEXT_AGAIN = CHANGE + "change('filter-text', '');"
VERDICT = CHANGE + "change('filter-verdict', 'REPRODUCED');"
DEVICE = CHANGE + "change('device', 'cpu');"
DEVICES = CHANGE + "change('device', '');"
COMPARE = (
    CHANGE
    + "change('filter-verdict', ''); change('compare-before', '3'); change('compare-after', '9');"
)


def made_up_run(cases: int, releases: int) -> RunResult:
    """Return a run with a result for each case and release; a few are not as expected."""
    known = load_all_cases(default_cases_dir())
    names = [str(version) for version in known_releases("vllm")[-releases:]]
    verdicts = [Verdict.REPRODUCED, Verdict.FIXED, Verdict.FIXED, Verdict.NOT_APPLICABLE]
    return RunResult(
        tuple(
            TestResult(
                known[number % len(known)].id + ("" if number < len(known) else f"-{number}"),
                f"test_{number}.py::test",
                Verdict.REGRESSED
                if (number, at) in ((5, 9), (50, 30))
                else verdicts[(number + at // 7) % len(verdicts)],
                "the documented failure",
                "sim",
                f"vllm-{name}",
                {"vllm": name, **{f"package-{index}": "1.0" for index in range(150)}},
                symptom="expected 8 results, got 1",
                command=f"vllm-regress run CASE --env vllm-{name}",
            )
            for number in range(cases)
            for at, name in enumerate(names)
        )
    )


def processor_time(browser: webdriver.Chrome) -> float:
    """Return the milliseconds that the page's thread has used."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(float(each["value"]) for each in metrics if each["name"] == "ThreadTime")


def measure(browser: webdriver.Chrome, page: Path) -> None:
    """Print size and times of a page with an overview."""
    rows: dict[str, list[float]] = {}
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    for _ in range(LOADS):
        browser.get("about:blank")
        browser.get(page.as_uri())
        paint = WebDriverWait(browser, 30).until(lambda _: browser.execute_script(PAINT))
        WebDriverWait(browser, 30).until(
            lambda _: browser.execute_script("return !document.querySelector('.filters').hidden")
        )
        rows.setdefault("first paint", []).append(paint)
        scripts = {
            "filter by text": TEXT,
            "filter removed": TEXT_AGAIN,
            "filter by verdict": VERDICT,
        }
        if browser.execute_script("return document.getElementById('compare-after') !== null"):
            scripts["compare"] = COMPARE
        if browser.execute_script("return document.getElementById('device') !== null"):
            scripts |= {"one device": DEVICE, "all devices": DEVICES}
        for name, script in scripts.items():
            before = processor_time(browser)
            browser.execute_script(script)
            rows.setdefault(name, []).append(processor_time(browser) - before)
    for name, times in rows.items():
        print(f"  {name}: {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})")


def size(path: Path) -> str:
    """Return the size of a file, or of all files in a folder, in MB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.2f} MB in {len(files)} file{'' if len(files) == 1 else 's'}"


def main() -> None:
    cases, releases = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (77, 54)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        known = load_all_cases(default_cases_dir())
        run = made_up_run(cases, releases)
        write_pages(place / "pages", run, known)
        (place / "all.html").write_text(page(run, known), encoding="utf-8")
        (place / "one.html").write_text(page(made_up_run(cases, 1), known), encoding="utf-8")
        root = default_cases_dir().parent
        write_site(place / "site", known, root / "locks", root)
        for name, overview in (
            (f"{cases} cases by {releases} releases, a folder", "pages/index.html"),
            (f"{cases} cases by {releases} releases, one file", "all.html"),
            (f"{cases} cases, one release, one file", "one.html"),
            ("the site of what is recorded", "site/index.html"),
        ):
            path = place / overview
            total = f", with all pages {size(path.parent)}" if path.parent != place else ""
            print(f"{name}: {size(path)}{total}")
            measure(browser, path)
    browser.quit()


if __name__ == "__main__":
    main()
