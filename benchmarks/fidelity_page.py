"""The page of ``benchmarks/fidelity.py``: what was predicted beside what was measured, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OWN, OTHER = 0.10, 0.15
"""What is allowed: replayed as recorded, and predicted of another scheduler."""
RATE, HALF_A_POINT = "_rate", 0.005
TITLES = {
    "colocations": "GPU jobs that share a card",
    "bitbrains": "Bitbrains, use of VMs",
    "genai": "Alibaba GenAI, latency of requests",
}


def judged(one: Mapping[str, Any], allowed: float) -> dict[str, Any]:
    """Say of a figure whether it is within the allowed error (rates: or half a point)."""
    off = one["relative_error"] if one["relative_error"] is not None else 1.0
    near = one["metric"].endswith(RATE) and abs(one["predicted"] - one["measured"]) <= HALF_A_POINT
    return {
        "metric": one["metric"],
        "predicted": one["predicted"],
        "measured": one["measured"],
        "error": off,
        "within": bool(off <= allowed or near),
    }


def rows_of(results: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (part, case, judged figure) of everything that was compared."""
    for one in results.get("queueing", []):
        name = f"seed {one['seed']}, `{one['calibrated_on']}`"
        for row in one["as_recorded"]:
            yield "queueing, as recorded", name, row
        for then, rows in one["other"].items():
            if then != one["calibrated_on"]:
                for row in rows:
                    yield "queueing, another scheduler", f"{name} → `{then}`", row
    for problem, one in results.get("sample", {}).items():
        for figure in one["figures"]:
            yield "sample, as recorded", f"`{problem}`", judged(figure, OWN)
    for trace, one in results.get("traces", {}).items():
        for figure in one["figures"]:
            yield "public traces", TITLES[trace], judged(figure, OWN)


def missed(results: Mapping[str, Any]) -> list[str]:
    """List what is off by more than is allowed."""
    return [f"{part}, {case}: {row['metric']}" for part, case, row in rows_of(results) if not row["within"]]


def page(results: Mapping[str, Any]) -> str:
    """Lay the results out."""
    lines = [
        "# Is the simulator true?",
        "",
        "Made by `python benchmarks/fidelity.py`: calibrated on train windows, predicted of test windows, beside what "
        "was measured in them. Allowed are 10 % where placements are replayed as recorded and 15 % of what another "
        "scheduler makes of the same arrivals (rates: or half a point).",
        "",
        f"**{len(missed(results))} of {len(list(rows_of(results)))} figures miss.** " + "; ".join(missed(results)),
        "",
        "*Queueing*: a day of eight services on seven machines, played by a model that imports nothing of Loadmaster "
        "(`benchmarks/queueing.py`: processor sharing, interference of its own law), scraped as a "
        "kube-prometheus-stack, in a real Prometheus, through the pipeline. *Another scheduler*: calibrated on windows "
        "that the first one made, what does the second make of the same arrivals? Truth is counted call by call in the "
        "model. *Sample*: every "
        "problem on the embedded sample.",
    ]
    lines += ["", results["note"]] if "note" in results else []
    part, rows = "", list(rows_of(results))
    order = list(dict.fromkeys(name for name, _, _ in rows))
    for name, case, row in sorted(rows, key=lambda one: order.index(one[0])):
        if name != part:
            lines += ["", f"## {name[0].upper()}{name[1:]}", "", "| case | figure | predicted | measured | off by | |"]
            lines += ["| --- | --- | ---: | ---: | ---: | --- |"]
            part = name
        mark = "" if row["within"] else "**misses**"
        cells = [case, row["metric"], f"{row['predicted']:.4g}", f"{row['measured']:.4g}", f"{row['error']:.1%}", mark]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- {TITLES[name]}: {one['note']}." for name, one in results.get("traces", {}).items()]
    lines += ["", *notes] if notes else []
    if "azure" in results:
        lines += _azure(results["azure"])
    if results.get("sample"):
        lines += origins(results["sample"], "the sample")
    return "\n".join(lines) + "\n"


def _azure(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        "## Azure Functions",
        "",
        f"{found['calls']:,} of {found['direct_calls']:,} calls arrive through the windows. Mean return of 64 "
        "episodes, through the windows and on the trace read directly; *apart*: pairs of rules whose paired difference "
        "has an "
        "interval without 0 on both sides.",
        "",
        "| decisions | best through windows | best directly | pairs apart | of them turned |",
        "| ---: | --- | --- | ---: | --- |",
    ]
    for one in found["tables"]:
        best = one["best"]
        turned = ", ".join(one["pairs_turned"]) or "none"
        lines.append(
            f"| {one['horizon']} | `{best['windows']}` | `{best['direct']}` | {one['pairs_apart']} | {turned} |"
        )
    return lines


def origins(parts: Mapping[str, Any], of_what: str) -> list[str]:
    """Lay out where every number of each problem comes from."""
    lines = [
        "",
        "## Measured, estimated, assumed",
        "",
        f"What the test windows of {of_what} tell of each number, feature by feature; the gate's report has this "
        "table for every night, and is inconclusive where more than half is assumed of what decides a metric.",
        "",
        "| problem | number | measured | estimated | assumed | decides |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for problem, one in parts.items():
        for origin in one["origins"]:
            total = max(origin["measured"] + origin["estimated"] + origin["assumed"], 1)
            shares = [f"{origin[kind] / total:.0%}" for kind in ("measured", "estimated", "assumed")]
            lines.append(f"| `{problem}` | {origin['feature']} | {' | '.join(shares)} | {origin['decides'] or '–'} |")
    return lines
