"""report.html in a real browser: it is clicked, typed into, walked through by keyboard, seen at a phone's width and printed."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from deploycnn.pipeline.reporting import write_reports
from deploycnn.recordfile import read_record

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium with chromedriver here: apt-get install chromium chromium-driver"),
]

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """As much of the W3C WebDriver protocol as these tests speak: JSON over HTTP to chromedriver."""

    def __init__(self, profile: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        assert DRIVER
        self._process = subprocess.Popen([DRIVER, f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._session = ""
        self._wait()
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": BROWSER}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = "/session/" + self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _wait(self) -> None:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            try:
                if self.call("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("chromedriver does not answer")

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        url = f"http://127.0.0.1:{self._port}{self._session}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["value"]["message"]) from None

    def js(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url: str, *, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.devtools("Emulation.setScriptExecutionDisabled", value=not script)
        self.devtools("Emulation.setFocusEmulationEnabled", enabled=True)  # a headless window has no focus to give to an element
        self.call("POST", "/url", {"url": url})
        if script:
            self.js("localStorage.clear(); delete document.documentElement.dataset.theme")

    def press(self, *keys: str) -> None:
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def hover(self, selector: str) -> None:
        # Two frames later the page has heard that it was scrolled.
        script = (
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "requestAnimationFrame(() => requestAnimationFrame(() => { const b = e.getBoundingClientRect();"
            "arguments[1]([b.left + b.width / 2, b.top + b.height / 2]); }))"
        )
        box = self.call("POST", "/execute/async", {"script": script, "args": [selector]})
        move = {"type": "pointerMove", "duration": 0, "x": round(box[0]), "y": round(box[1])}
        self.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def errors(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait(20)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(str(tmp_path_factory.mktemp("profile")))
    yield made
    made.close()


@pytest.fixture
def page(run_folder):
    write_reports(run_folder, read_record(run_folder))
    return (run_folder / "report.html").as_uri()


ROWS = "return [...document.querySelectorAll('.artifacts tbody tr')].filter(r => r.getClientRects().length).map(r => r.dataset.cell)"
CLICK = "document.querySelector(arguments[0]).click()"


def column(browser, heading):
    """Texts of a column of the artifacts' table, from the top, of the rows that show."""
    return browser.js(
        "const head = [...document.querySelectorAll('.artifacts thead th')];"
        "const at = head.findIndex(h => h.getClientRects().length && h.textContent.startsWith(arguments[0]));"
        "return [...document.querySelectorAll('.artifacts tbody tr')].filter(r => r.getClientRects().length)"
        ".map(r => r.cells[at].dataset.sort)",
        heading,
    )


def click_heading(browser, heading):
    browser.js(
        "[...document.querySelectorAll('.artifacts thead th')].find(h => h.getClientRects().length && "
        "h.textContent.startsWith(arguments[0])).querySelector('button').click()",
        heading,
    )


def test_it_opens_without_an_error_or_a_request(browser, page):
    browser.open(page)
    assert browser.js("return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:'))") == []
    assert "Ship" in browser.js("return document.querySelector('h1').textContent")
    assert browser.errors() == []


def test_every_button_can_be_pressed_without_an_error(browser, page):
    browser.open(page)
    pressed = browser.js(
        "const all = [...document.querySelectorAll('button, summary, [type=radio]')]; all.forEach(b => b.click()); return all.length"
    )
    assert pressed > 25
    assert browser.errors() == []


def test_headings_sort_both_ways_and_leave_gaps_last(browser, page):
    browser.open(page)
    for heading in ("p50", "top-1", "size"):
        for direction in (1, -1):
            click_heading(browser, heading)
            found = column(browser, heading)
            known = [float(value) for value in found if value]
            assert len(known) >= 5
            assert known == sorted(known, reverse=direction < 0)
            assert all(not value for value in found[len(known) :])
    state = browser.js(
        "return [...document.querySelectorAll('.artifacts th[aria-sort]')].map(h => h.getAttribute('aria-sort')).filter(s => s !== 'none')"
    )
    assert state == ["descending"]
    click_heading(browser, "artifact")
    names = browser.js(ROWS)
    assert names == sorted(names)
    assert browser.errors() == []


def test_words_and_verdicts_filter(browser, page):
    browser.open(page)
    everything = len(browser.js(ROWS))
    browser.js("const f = document.querySelector('.filter'); f.value = 'INT8 openvino'; f.dispatchEvent(new Event('input'))")
    assert browser.js(ROWS) == ["openvino/int8/cpu"]
    assert browser.js("return document.querySelector('output').textContent").startswith("1 of ")
    browser.js("const f = document.querySelector('.filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
    browser.js(CLICK, ".state[data-state=fail]")
    assert len(browser.js(ROWS)) < everything
    browser.js(CLICK, ".state[data-state=fail]")
    browser.js(CLICK, ".state[data-state=skipped]")
    assert len(browser.js(ROWS)) == everything + 1
    assert browser.errors() == []


def test_the_theme_follows_the_system_until_it_is_switched(browser, page):
    paper = "return getComputedStyle(document.querySelector('section')).backgroundColor"
    browser.open(page, dark=False)
    light = browser.js(paper)
    browser.open(page, dark=True)
    dark = browser.js(paper)
    assert dark != light
    browser.js(CLICK, ".theme")
    assert browser.js(paper) == light
    browser.call("POST", "/refresh")
    assert browser.js(paper) == light  # it is remembered
    assert browser.errors() == []


def test_one_batch_size_shows_at_a_time(browser, page):
    shown = "return [...document.querySelectorAll('#trade figure')].filter(f => f.getClientRects().length).map(f => f.dataset.batch)"
    browser.open(page)
    assert browser.js(shown) == ["1"]
    browser.js(CLICK, ".switch input[value='32']")
    assert browser.js(shown) == ["32"]
    assert browser.js("return document.querySelectorAll('.artifacts [data-batch=\"1\"]:not([hidden])').length") == 0
    assert browser.errors() == []


@pytest.mark.parametrize(
    "selector",
    [".artifacts td[data-sort].right", "#distributions .wide .mark", "#trade .wide .mark .marker", ".tiles li", ".layer[data-tip]"],
)
def test_what_is_pointed_at_says_what_stands_behind_it(browser, page, selector):
    browser.open(page)
    browser.hover(selector)
    assert browser.js("const t = document.getElementById('tip'); return [t.hidden, t.textContent.length > 20]") == [False, True]
    assert browser.errors() == []


def test_the_keyboard_reaches_every_figure(browser, page):
    browser.open(page)
    browser.js("document.querySelector('.artifacts tbody [data-tip]').focus()")
    tip = "const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent"
    seen = [browser.js(tip)]
    for key in ("\ue014", "\ue014", "\ue014", "\ue014", "\ue015"):  # right, right, right, right, down
        browser.press(key)
        seen.append(browser.js(tip))
    assert all(seen)
    assert len(set(seen)) == 6
    assert "runs in 40 blocks" in seen[-1]
    assert browser.js("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("\ue00c")  # escape
    assert browser.js(tip) == ""
    browser.js("document.querySelector('#trade .wide .mark').focus()")
    browser.press("\ue014")
    assert "p50" in browser.js(tip)
    # One tab stop for a table or a chart, whatever its size.
    assert browser.js(
        "return [...document.querySelectorAll('table, svg.chart')].every(g => g.querySelectorAll('[tabindex=\"0\"]').length <= 1)"
    )
    assert browser.errors() == []


@pytest.mark.parametrize(("width", "shown"), [(390, ".narrow"), (360, ".narrow"), (768, ".narrow"), (1280, ".wide")])
def test_no_width_makes_the_page_scroll_sideways(browser, page, width, shown):
    browser.open(page, width=width)
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
    visible = browser.js(
        "return [...document.querySelectorAll('.picture > div')].filter(d => d.getClientRects().length).map(d => d.className)"
    )
    assert set(visible) == {shown.removeprefix(".")}
    too_small = browser.js(
        "return [...document.querySelectorAll('.picture svg text')].filter(t => t.getClientRects().length)"
        ".filter(t => t.getBoundingClientRect().height < 9).length"
    )
    assert too_small == 0
    assert browser.errors() == []


def test_without_scripts_everything_is_there(browser, page):
    browser.open(page, script=False)
    document = browser.devtools("DOM.getDocument", depth=0)["root"]["nodeId"]
    html = browser.devtools("DOM.getOuterHTML", nodeId=document)["outerHTML"]
    assert html.count('class="picture" data-batch="32"') >= 2
    assert "data-tip=" not in html
    assert 'title="p50' in html
    browser.devtools("Emulation.setScriptExecutionDisabled", value=False)


def test_it_prints(browser, page):
    browser.open(page, dark=True)
    pdf = base64.b64decode(browser.devtools("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    assert browser.errors() == []
