"""The page as one file: markup, style, scripts and the runs themselves; it asks nobody for anything."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from sched_env.view.pack import Packed, encode_head

SCRIPTS = ("run.js", "theme.js", "cluster.js", "trend.js", "timeline.js", "graph.js", "pane.js", "player.js")


def html(runs: Sequence[Packed], title: str) -> str:
    """Put the page together."""
    web = resources.files("sched_env.view") / "web"
    page = (web / "page.html").read_text()
    data = []
    for number, run in enumerate(runs):
        head, block = run.encoded()
        data.append(f'<script type="application/json" class="run-head">{encode_head(head)}</script>')
        data.append(f'<script type="text/plain" class="run-block" id="block-{number}">{block}</script>')
    parts = {
        "{{title}}": title.replace("&", "&amp;").replace("<", "&lt;"),
        "{{style}}": (web / "style.css").read_text(),
        "{{data}}": "\n".join(data),
        "{{scripts}}": "\n".join(f"<script>\n{(web / name).read_text()}</script>" for name in SCRIPTS),
    }
    for mark, text in parts.items():
        page = page.replace(mark, text, 1)
    return page
