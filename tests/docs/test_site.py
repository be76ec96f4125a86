"""The site builds strictly, loads nothing from elsewhere, and its reference and notebooks are those of the code."""

import json
import re
import runpy
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHORTER = {
    "serverless": {"100_000": "2_048", "n_eval_episodes=10": "n_eval_episodes=1", "range(1_000)": "range(250)"},
    "vmagent": {"EPOCHS, BATCH, GAMMA = 60": "EPOCHS, BATCH, GAMMA = 3", "range(4_000)": "range(1_500)"},
}


class Loads(HTMLParser):
    """Addresses that a browser would ask for by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and named.get("src"):
            self.found.append(named["src"])
        if tag == "link" and named.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(named.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    config = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed: extra docs")
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(config.load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        elsewhere = [address for address in loads.found if re.match(r"(https?:)?//", address)]
        assert not elsewhere, f"{page.name} loads {elsewhere}"
    home = (site / "index.html").read_text()
    assert "images/replay.png" in home
    assert "From zero to a promoted policy" in home


@pytest.mark.browser
def test_a_reader_without_network_finds_a_word(site):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    import functools
    import http.server
    import threading

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_api.sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 844})
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        address = f"http://127.0.0.1:{server.server_port}"
        page.goto(f"{address}/how-to/rollback-at-3am.html")
        assert "loadmaster mode heuristic" in page.inner_text("article")
        assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth + 1")
        page.click("label[for=__search]")
        found, box = page.locator(".md-search-result__item a").first, page.locator("input.md-search__input")
        box.press_sequentially("back-test")  # the page asks when a key is let go, not when the text has changed
        for _ in range(20):
            if found.is_visible():
                break
            page.wait_for_timeout(1500)
            box.press("End")  # what was typed before its script had run was not heard
        assert found.is_visible()
        browser.close()
        server.shutdown()
    assert all(url.startswith((address, "blob:", "data:")) for url in asked), asked


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="help texts are formatted as Python 3.11 does it")
def test_the_reference_is_what_the_code_says():
    script = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    made = script["pages"]()
    for name, text in made.items():
        assert (DOCS / "reference" / name).read_text() == text, f"docs/reference/{name} is old: make reference"
    assert json.loads((ROOT / "wire" / "helps.json").read_text()) == script["helps"](), "make reference"


@pytest.mark.parametrize("name", sorted(SHORTER))
def test_a_notebook_is_its_page(name):
    scripts = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))
    committed = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    assert committed == scripts["notebook"](scripts["PAGES"][name]), "make reference"


@pytest.mark.parametrize("name", sorted(SHORTER))
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: extra docs")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: extra docs")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = (DOCS / "notebooks" / f"{name}.ipynb").read_text()
    for long, short in SHORTER[name].items():
        assert long in text, f"the page no longer says {long}: change this test with it"
        text = text.replace(long, short)
    book = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(book, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert {"serverless": "mean return -", "vmagent": "untrained"}[name] in printed


@pytest.mark.parametrize("page", ["my-trace", "my-reward"])
def test_the_code_of_a_how_to_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "page"})


def test_every_data_set_has_its_four_facts():
    pages = [path for path in (DOCS / "data-sets").glob("*.md") if path.name != "index.md"]
    assert len(pages) == 11
    for page in pages:
        headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
        wanted = ["Format", "Statistics", "Licence", "How to get it", "What Loadmaster makes of it"]
        assert headings == wanted, page.name
        assert page.name in (DOCS / "data-sets" / "index.md").read_text()
