"""What the last looks found, for people (a page) and for Prometheus (a text file for node_exporter's collector)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from pipeline.files import write_atomic
from pipeline.watch.looking import Seen

PAGE, METRICS = "index.html", "loadmaster_watch.prom"


def write(folder: Path, seen: Sequence[Seen]) -> None:
    """Write both, whole or not at all."""
    write_atomic(folder / PAGE, html(seen).encode())
    write_atomic(folder / METRICS, metrics(seen).encode())


def metrics(seen: Sequence[Seen]) -> str:
    """Write the exposition text."""
    names = ("loadmaster_watch_value", "loadmaster_watch_limit", "loadmaster_watch_alarm")
    rows: dict[str, list[str]] = {name: [] for name in names}
    for one in seen:
        pairs = [(figure.name, figure.now, figure.limit) for figure in one.figures]
        pairs += [(f"drift of {name}", look.psi, look.limit) for name, look in one.drift.items()]
        pairs += [(f"load of {name}", abs(look.step), look.limit) for name, look in one.loads.items()]
        for name, value, limit in pairs:
            labels = f'{{problem="{one.problem}",figure="{_label(name)}"}}'
            rows["loadmaster_watch_value"].append(f"{labels} {value:.6g}")
            rows["loadmaster_watch_limit"].append(f"{labels} {limit:.6g}")
        for kind, reason in (("rollback", one.rollback), ("retrain", one.retrain)):
            rows["loadmaster_watch_alarm"].append(f'{{problem="{one.problem}",kind="{kind}"}} {int(bool(reason))}')
    lines = [f"# TYPE {name} gauge\n" + "".join(f"{name}{row}\n" for row in found) for name, found in rows.items()]
    return "".join(lines)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def html(seen: Sequence[Seen]) -> str:
    """Write the page: a table a problem, alarms first."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Loadmaster: what is live</title>",
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:"
        "collapse;width:100%}td,th{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #ccc}"
        ".alarm{color:#a00;font-weight:600}</style><h1>What is live</h1>",
    ]
    for one in seen:
        at = datetime.fromtimestamp(one.at_s, UTC).isoformat(timespec="minutes")
        parts.append(f"<h2>{escape(one.problem)}</h2><p><code>{escape(one.digest)}</code>, looked at {at}</p>")
        early = "trains early" if one.density is None else f"trains early, for {one.density:.3g} times the load"
        for kind, reason in (("asked to roll back", one.rollback), (early, one.retrain)):
            if reason:
                parts.append(f"<p class='alarm'>{kind}: {escape(reason)}</p>")
        parts.append("<table><tr><th>figure</th><th>now</th><th>promised or usual</th><th>limit</th></tr>")
        rows = [(figure.name, figure.now, f"{figure.promised:.4g}", figure.limit) for figure in one.figures]
        rows += [(f"drift of {name} (PSI)", look.psi, "", look.limit) for name, look in one.drift.items()]
        rows += [
            (f"change of the load of {name} (natural logarithm)", abs(look.step), f"{look.times:.2f} times", look.limit)
            for name, look in one.loads.items()
        ]
        for name, now, usual, limit in rows:
            mark = " class='alarm'" if now > limit else ""
            parts.append(
                f"<tr{mark}><td>{escape(name)}</td><td>{now:.4g}</td><td>{usual}</td><td>{limit:.4g}</td></tr>"
            )
        parts.append("</table>" + "".join(f"<p>{escape(note)}</p>" for note in one.notes))
    if not seen:
        parts.append("<p>No policy is live.</p>")
    return "".join(parts) + "</html>\n"
