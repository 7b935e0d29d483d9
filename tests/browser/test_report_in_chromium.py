"""The report in headless Chromium, without a network: it draws, its toggles work, and the console stays silent.

``tests/browser/run`` installs what this needs.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from comparison_folders import NASTY, POLICIES, PREEMPTIVE, nasty_comparison

import ddlsched
from ddlsched.comparisons.charts.style import colours, on_dark
from ddlsched.comparisons.report.html_report import report

pytestmark = pytest.mark.browser

WIDE = """
import ddlsched


def wide(*, seed):
    return ddlsched.Workload.of([one(number, 1 + int(10 ** (number / 9))) for number in range(60)])


def one(number, iterations):
    work = ddlsched.DataParallelIteration(forward_s=0.4, backward_s=0.6, message_bytes=1e8)
    return ddlsched.Job(
        job_id=str(number), arrival_s=number, num_gpus=1 + number % 9, iterations=iterations, iteration=work,
        gpu_memory_mb=4000.0, model="one",
    )
"""

CHARTS = [f"chart-0-{number}" for number in range(6)]
CHANGES, AVERAGE, BY_SIZE, DISTRIBUTION, NETWORK, UTILISATION = CHARTS
MAP = "placement-0"
BARS, LINES = ".barlayer .point path", ".scatterlayer .js-line"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(nasty_comparison(tmp_path_factory.mktemp("browser") / "comparison"))


@pytest.fixture(scope="module")
def wide_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of jobs from a second to months, as in traces of datacentres, under policies of long names."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "gen.py").write_text(WIDE)
    policies = ["ada-srsf", {"placement": "lwf:kappa=1", "order": "srsf", "communication": "bounded-overlap:limit=3"}]
    workload = f"{folder / 'gen.py'}:wide"
    ddlsched.compare(workload, policies, seeds=1, servers=32, folder=folder / "comparison", processes=1)
    return report(folder / "comparison")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, cut off from every network."""
    from selenium import webdriver

    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    assert all(programs.values()), f"{programs}: expected both; tests/browser/run installs them"
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
    driver.execute_cdp_cmd("Network.enable", {})
    off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", off)
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium: Any, written: Path) -> Iterator[Any]:
    """The report with all charts drawn; whatever a test does, the console must be silent after it."""
    set_width(chromium, 1280)
    prefer(chromium, "light")
    for log in ("browser", "performance"):
        chromium.get_log(log)
    chromium.get(written.as_uri())
    draw_all(chromium)
    yield chromium
    assert chromium.get_log("browser") == []


def set_width(driver: Any, pixels: int) -> None:
    size = {"width": pixels, "height": 1000, "deviceScaleFactor": 1, "mobile": pixels < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(driver: Any, scheme: str) -> None:
    preferences = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in preferences.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def draw_all(driver: Any) -> None:
    """Go through the page: charts are drawn when they are about to be seen."""
    for name in (*CHARTS, MAP):
        bring(driver, name)
        drawn = f"return document.getElementById('{name}').dataset.drawn"
        becomes(lambda drawn=drawn: driver.execute_script(drawn), "yes")


def bring(driver: Any, chart: str) -> None:
    driver.execute_script("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", chart)


def becomes(value: Callable[[], object], expected: object, seconds: float = 20.0) -> None:
    """Wait until a value is the expected one."""
    end_s = time.monotonic() + seconds
    while (found := value()) != expected:
        assert time.monotonic() < end_s, f"{found!r} after {seconds} s; expected {expected!r}"
        time.sleep(0.05)


def shown(driver: Any, chart: str) -> set[int]:
    """The policies that a chart shows."""
    script = """
        const found = document.getElementById(arguments[0])._fullData.filter((trace) => trace.visible === true);
        return found.map((trace) => trace.meta.policy);
    """
    return set(driver.execute_script(script, chart))


def rows(driver: Any) -> int:
    """Rows of the heat map."""
    return driver.execute_script("return document.getElementById(arguments[0])._fullData[0].z.length", NETWORK)


def marks(driver: Any, chart: str, selector: str) -> int:
    """Elements of a chart's drawing."""
    return len(driver.find_elements("css selector", f"#{chart} {selector}"))


def toggle(driver: Any, policy: int) -> Any:
    return driver.find_element("css selector", f"#toggles input[data-policy='{policy}']")


def theme(driver: Any) -> str:
    return driver.execute_script("return document.documentElement.dataset.theme")


def plain(text: str) -> str:
    """A text without what charts add to it: line breaks, and marks that keep plotly from reading it."""
    return "".join(text.replace("\N{WORD JOINER}", "").split())


# ---- Drawing


def test_all_charts_are_drawn_and_nothing_is_asked_of_a_network(page, written):
    everybody = {0, 1, 2}
    assert shown(page, CHANGES) == {1, 2}  # the baseline does not change against itself
    for chart in (AVERAGE, BY_SIZE, DISTRIBUTION, UTILISATION):
        assert shown(page, chart) == everybody
    assert marks(page, AVERAGE, BARS) == 3
    assert marks(page, BY_SIZE, BARS) == 9
    assert marks(page, DISTRIBUTION, LINES) == 3
    assert marks(page, MAP, BARS) > 500
    assert rows(page) == 3
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}


def test_names_are_shown_as_they_are(page):
    assert [label.text for label in page.find_elements("css selector", "#toggles label")] == list(POLICIES)
    assert page.find_elements("tag name", "b") == []
    for chart in (CHANGES, BY_SIZE, DISTRIBUTION, UTILISATION):
        names = page.find_elements("css selector", f"#{chart} .legendtext")
        assert plain(NASTY) in [plain(name.get_attribute("textContent")) for name in names]
    for chart in (AVERAGE, NETWORK):
        names = page.find_elements("css selector", f"#{chart} .ytick text")
        assert plain(NASTY) in [plain(name.get_attribute("textContent")) for name in names]


# ---- Toggles


def test_a_toggle_acts_on_all_charts_at_once(page):
    toggle(page, 1).click()
    for chart in (AVERAGE, BY_SIZE, DISTRIBUTION, UTILISATION):
        becomes(lambda chart=chart: shown(page, chart), {0, 2})
    becomes(lambda: shown(page, CHANGES), {2})
    becomes(lambda: marks(page, AVERAGE, BARS), 2)
    becomes(lambda: marks(page, BY_SIZE, BARS), 6)
    becomes(lambda: marks(page, DISTRIBUTION, LINES), 2)
    becomes(lambda: rows(page), 2)
    maps = page.find_elements("css selector", "details.map")
    assert [each.is_displayed() for each in maps] == [True, False, True]
    toggle(page, 1).click()
    for chart in (AVERAGE, BY_SIZE, DISTRIBUTION, UTILISATION):
        becomes(lambda chart=chart: shown(page, chart), {0, 1, 2})
    becomes(lambda: rows(page), 3)
    becomes(lambda: marks(page, AVERAGE, BARS), 3)
    assert all(each.is_displayed() for each in maps)


def test_toggles_work_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("arguments[0].focus()", toggle(page, 0))
    toggle(page, 0).send_keys(Keys.SPACE)
    becomes(lambda: shown(page, AVERAGE), {1, 2})
    becomes(lambda: rows(page), 2)
    toggle(page, 0).send_keys(Keys.TAB)
    assert page.switch_to.active_element == toggle(page, 1)


def test_charts_that_are_drawn_later_know_what_is_hidden(page):
    page.refresh()
    toggle(page, 2).click()
    draw_all(page)
    assert shown(page, UTILISATION) == {0, 1}
    assert rows(page) == 2


def test_all_policies_may_be_hidden(page):
    for policy in range(3):
        toggle(page, policy).click()
    for chart in (CHANGES, AVERAGE, BY_SIZE, DISTRIBUTION, UTILISATION):
        becomes(lambda chart=chart: shown(page, chart), set())
    becomes(lambda: rows(page), 0)
    toggle(page, 0).click()
    becomes(lambda: rows(page), 1)
    becomes(lambda: shown(page, AVERAGE), {0})


def test_a_legend_hides_in_its_own_chart(page):
    bring(page, DISTRIBUTION)
    page.find_elements("css selector", f"#{DISTRIBUTION} .legendtoggle")[0].click()
    becomes(lambda: shown(page, DISTRIBUTION), {1, 2})
    assert shown(page, UTILISATION) == {0, 1, 2}


# ---- Looking closer


def test_hovering_tells_the_numbers(page):
    from selenium.webdriver import ActionChains

    bring(page, AVERAGE)
    bar = page.find_elements("css selector", f"#{AVERAGE} {BARS}")[1]
    ActionChains(page).move_to_element(bar).perform()
    becomes(lambda: marks(page, AVERAGE, ".hoverlayer .hovertext"), 1)
    text = page.find_element("css selector", f"#{AVERAGE} .hoverlayer").get_attribute("textContent")
    assert " s [" in text
    assert plain(NASTY) in plain(text)


def test_zooming_changes_the_axis_and_no_button_sends_data(page):
    last_s = f"return document.getElementById('{UTILISATION}')._fullLayout.xaxis.range[1]"
    before = page.execute_script(last_s)
    bring(page, UTILISATION)
    page.find_element("css selector", f"#{UTILISATION} [data-title='Zoom in']").click()
    becomes(lambda: page.execute_script(last_s) < before, True)
    buttons = {button.get_attribute("data-title") for button in page.find_elements("css selector", "[data-title]")}
    assert buttons == {"Download plot", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


# ---- Light, dark, narrow, on paper


def test_a_policy_has_its_colour_in_every_chart_light_and_dark(page):
    script = """
        const drawn = (id) => document.getElementById(id)._fullData
            .filter((trace) => trace.meta.policy === 2 && trace.fill !== "toself")
            .map((trace) => (trace.mode === "lines" ? trace.line.color : trace.marker.color));
        return arguments[0].flatMap(drawn);
    """
    own = colours(list(POLICIES))[PREEMPTIVE]
    for scheme, colour in (("light", own), ("dark", on_dark(own))):
        prefer(page, scheme)
        becomes(lambda: theme(page), scheme)
        found = page.execute_script(script, [CHANGES, AVERAGE, BY_SIZE, DISTRIBUTION, UTILISATION])
        assert found == [colour] * 7  # three of them in the panels of sizes


def test_the_button_changes_the_theme(page):
    def look() -> list[str]:
        ink = f"document.getElementById('{UTILISATION}')._fullLayout.font.color"
        return page.execute_script(f"return [getComputedStyle(document.body).backgroundColor, {ink}]")

    light = look()
    page.find_element("id", "theme").click()
    becomes(lambda: [new != old for new, old in zip(look(), light, strict=True)], [True, True])
    page.find_element("id", "theme").click()
    becomes(look, light)


CONTRAST = r"""
    const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const light = (colour) => {
        const [red, green, blue] = numbers(colour).slice(0, 3).map((part) => linear(part / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (numbers(colour)[3] !== 0) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const isText = (node) => node.nodeType === 3 && node.textContent.trim();
    const texts = [...document.querySelectorAll("body *:not(svg *):not(script)")]
        .filter((element) => [...element.childNodes].some(isText) && element.checkVisibility());
    return texts.map((element) => {
        const pair = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
        return [`${element.tagName}.${element.className}`, (pair[0] + 0.05) / (pair[1] + 0.05)];
    });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(page, scheme):
    prefer(page, scheme)
    becomes(lambda: theme(page), scheme)
    ratios = page.execute_script(CONTRAST)
    assert len(ratios) > 100
    assert [(text, ratio) for text, ratio in ratios if ratio < 4.5] == []


def test_on_a_narrow_screen_only_tables_scroll_sideways(page):
    set_width(page, 360)
    page.refresh()
    draw_all(page)
    widths = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert page.execute_script(widths) == [360, 360]
    wide = "return [...document.querySelectorAll('.plot')].filter((plot) => plot.scrollWidth > plot.clientWidth).length"
    assert page.execute_script(wide) == 0


# Slanted ticks are left out: their boxes overlap where they do not.
OVERLAPS = """
const clipped = (element) => {
    const box = element.getBoundingClientRect(), outer = element.closest(".plot").getBoundingClientRect();
    return box.left < outer.left - 1 || box.right > outer.right + 1;
};
const faults = [];
for (const plot of document.querySelectorAll(".plot")) {
    for (const axis of plot.querySelectorAll(".xaxislayer-above > g, .xaxislayer-above")) {
        const boxes = [...axis.querySelectorAll(":scope > .xtick text, :scope > g.xtick text")]
            .filter((text) => !/rotate\\((?!0[,)])/.test(text.getAttribute("transform") || ""))
            .map((text) => [text.textContent, text.getBoundingClientRect()]).sort((a, b) => a[1].left - b[1].left);
        for (let place = 1; place < boxes.length; place++) {
            const [[before, left], [after, right]] = [boxes[place - 1], boxes[place]];
            if (right.left < left.right - 0.5 && right.top < left.bottom - 0.5 && left.top < right.bottom - 0.5) {
                faults.push(`${plot.id}: ${before} and ${after} overlap`);
            }
        }
    }
    for (const text of plot.querySelectorAll(".xtick text, .ytick text, .legendtext")) {
        if (clipped(text)) faults.push(`${plot.id}: ${text.textContent} is cut`);
    }
}
for (const label of document.querySelectorAll(".toggles .policy, h1, h2, h3, .lead, nav a")) {
    const inside = label.scrollWidth <= label.clientWidth + 1 || getComputedStyle(label).display === "inline";
    if (!inside) faults.push(`${label.textContent} is cut`);
    const box = label.getBoundingClientRect();
    if (box.right > document.documentElement.clientWidth + 1) faults.push(`${label.textContent} leaves the page`);
}
return faults;
"""


@pytest.mark.parametrize("width", [420, 768, 1200, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_is_cut_and_no_ticks_overlap_at_any_width(page, wide_report, width, scheme):
    set_width(page, width)
    prefer(page, scheme)
    page.get(wide_report.as_uri())
    draw_all(page)
    assert page.execute_script(OVERLAPS) == []
    assert page.execute_script("return document.querySelectorAll('.plot .xtick text').length") > 15
    beyond = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(beyond) == 0


VALUES = """
return [...document.querySelectorAll("#" + arguments[0] + " .bartext")].map((text) => {
    const box = text.getBoundingClientRect(), chart = text.closest(".plot").getBoundingClientRect();
    const bar = text.parentNode.querySelector("path").getBoundingClientRect();
    return {
        text: text.textContent, height: box.height, turned: /scale|rotate/.test(text.getAttribute("transform")),
        in_chart: box.left >= chart.left && box.right <= chart.right,
        across_the_end: box.left < bar.right && box.right > bar.right + 1,
    };
});
"""


@pytest.mark.parametrize("width", [420, 768, 1200, 1600])
@pytest.mark.parametrize("share", [1.0, 0.1, 0.005])
def test_the_value_of_a_bar_can_be_read_however_short_the_bar_is(page, width, share):
    set_width(page, width)
    page.refresh()
    draw_all(page)
    bring(page, AVERAGE)
    shorter = """
        const mean = document.getElementById(arguments[0])._fullData[1].x[0] * arguments[1];
        const ends = {"error_x.array": [[mean / 9]], "error_x.arrayminus": [[mean / 9]]};
        Plotly.restyle(arguments[0], {x: [[mean]], text: [["1234567"]], ...ends}, [0]);
    """
    page.execute_script(shorter, AVERAGE, share)
    becomes(lambda: "1234567" in [value["text"] for value in page.execute_script(VALUES, AVERAGE)], True)
    values = page.execute_script(VALUES, AVERAGE)
    assert len(values) == 3
    for value in values:
        assert value["height"] > 10
        assert (value["turned"], value["in_chart"], value["across_the_end"]) == (False, True, False), value


def test_a_table_that_is_cut_says_that_there_is_more(page):
    set_width(page, 420)
    page.refresh()
    draw_all(page)
    script = """
        return [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth)
            .filter((box) => !getComputedStyle(box).backgroundImage.includes("gradient")).length
    """
    assert page.execute_script(script) == 0


def test_it_prints_as_wide_as_paper_and_comes_back(page):
    width = f"return document.getElementById('{UTILISATION}')._fullLayout.width"
    before = page.execute_script(width)
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    becomes(lambda: page.execute_script(width), 640)
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    becomes(lambda: page.execute_script(width), before)
    assert base64.b64decode(page.print_page()).startswith(b"%PDF")


def test_tables_charts_and_controls_have_names(page):
    script = """
        const without = (selector, name) =>
            [...document.querySelectorAll(selector)].filter((element) => !name(element)).length;
        return [
            without("table", (table) => table.caption && table.caption.textContent.trim()),
            without("th", (cell) => cell.scope),
            without(".plot", (plot) => plot.getAttribute("aria-label")),
            without("input", (input) => input.labels.length === 1),
        ];
    """
    assert page.execute_script(script) == [0, 0, 0, 0]
    assert len(page.find_elements("tag name", "table")) >= 4
    assert page.execute_script("return document.documentElement.lang") == "en"
    assert len(page.find_elements("tag name", "h1")) == 1
