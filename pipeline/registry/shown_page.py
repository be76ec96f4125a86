"""The pages around what is shown: where to look before answering, and what the service does right now.

No scripts, nothing loaded from elsewhere, every text escaped; links are relative, so that any path in front of them
will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from pipeline.errors import PushError
from pipeline.paths import REPORT_HTML
from pipeline.registry import service
from pipeline.registry.chain import Chain
from pipeline.registry.shown import Shown
from sched_env import problems
from wire.contracts.policies import LivePolicy
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError

STYLE = """
:root { color-scheme: light dark; --text: light-dark(#1d2430, #e3e8ef); --soft: light-dark(#5b6675, #9aa6b5);
  --line: light-dark(#d8dee6, #333d4a); --panel: light-dark(#ffffff, #1a212b); --ground: light-dark(#f4f6f9, #11161d);
  --good: light-dark(#1a7f4b, #4fc98a); --bad: light-dark(#b3261e, #ff8a80); --accent: light-dark(#1f5fbf, #7fb2ff); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem 1rem 3rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1, h2, p { overflow-wrap: anywhere; }
h1 { font-size: 1.45rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .6rem; }
a { color: var(--accent); } a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem;
  margin: .6rem 0; }
.card h3 { margin: 0 0 .4rem; font-size: 1rem; } .look { list-style: none; padding: 0; margin: 0; }
.look a { display: block; background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: .6rem 1rem; margin: .4rem 0; }
dl { display: grid; grid-template-columns: fit-content(40%) 1fr; gap: .15rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of these pages, and of the report: nothing runs, nothing is fetched."""

ASK_S = 4.0
"""A page waits no longer for the service; it says so instead."""


class _Moment(msgspec.Struct, frozen=True):
    decisions: int
    fallbacks: int
    p99_ms: float | None


class _Overview(msgspec.Struct, frozen=True):
    timeline: dict[str, list[_Moment]]
    frozen_until: str | None = None


class State(msgspec.Struct, frozen=True):
    """What the service and the registry say now."""

    url: str
    policies: Mapping[str, LivePolicy | None]
    live: Mapping[str, PromotionRecord | None]
    """The registry's record of what is live."""
    hour: Mapping[str, Sequence[_Moment]]
    frozen_until: str | None = None
    fault: str = ""
    """Why the service could not be asked."""


def ask(url: str) -> State:
    """Ask the service and the registry; a service that does not answer is a fact to show, not an error."""
    chain = Chain.open()
    live = {problem: chain.live(problem) for problem in problems.names()}
    try:
        policies = service.policies(url, timeout_s=ASK_S)
        seen = service.ask(url, "/v1/overview", _Overview, timeout_s=ASK_S)
    except PushError as error:
        return State(url, {}, live, {}, fault=str(error))
    return State(url, policies, live, seen.timeline, seen.frozen_until)


def now(state: State) -> str:
    """Write the page of what is live."""
    cards = [_card(state, problem) for problem in problems.names() if _known(state, problem)]
    return _page("What is live", [_service(state), *(cards or ["<p>No policy was ever live: rules answer.</p>"])])


def of_run(run_id: str, found: Iterable[Shown], state: State) -> str:
    """Write the page of a run: a section a problem."""
    parts = [
        f"<h2>{escape(_verdict(each))}</h2>" + _asked(each, f"../../{each.commit}/{each.problem}/", state)
        for each in found
    ]
    if not parts:
        parts = ["<p>This run has recorded no report: it is under way, it failed, or it is none of a night.</p>"]
    return _page(f"Run {run_id}", [*parts, _beside(state)])


def of_commit(shown: Shown, state: State) -> str:
    """Write the page that the question links to."""
    return _page(_verdict(shown), [_asked(shown, "", state), _beside(state)])


def refused(error: LoadmasterError) -> str:
    """Say why there is no such page."""
    return _page("Not here", [f"<p>{escape(str(error))}</p>"])


def _verdict(shown: Shown) -> str:
    words = {"pass": "passed the gate", "fail": "failed the gate"}
    outcome = str(shown.report.get("outcome"))
    return f"{shown.problem}: {words.get(outcome, outcome)}"


def _asked(shown: Shown, below: str, state: State) -> str:
    names = {REPORT_HTML: "The evaluation: distributions, service level against cost, slices, the worst episodes"}
    links = []
    for page in shown.pages:
        number = page.removeprefix("worst-").removesuffix(".html")
        text = names.get(page, f"Replay of worst episode {number}: the new policy beside what it is compared with")
        links.append(f'<li><a href="{escape(below + page, quote=True)}">{text}</a></li>')
    digest = str(shown.report.get("digest"))
    record = state.live.get(shown.problem)
    facts = {
        "run": shown.run_id,
        "bundle": digest + (" (live)" if record is not None and record.digest == digest else ""),
        "report": f"sha256:{shown.report_sha256}",
        "commit": shown.commit,
    }
    return (
        f"<p>{escape(str(shown.report.get('reason', '')))}</p>"
        f'<div class="card">{_facts(facts)}</div>'
        '<p class="soft">Bundle, report and commit stand at the end of the question in Airflow too: an answer counts '
        "for them and for nothing else.</p><h2>Look at</h2>"
        + (f'<ul class="look">{"".join(links)}</ul>' if links else "<p>This run kept no pages.</p>")
        + f"<h2>What is live now for {escape(shown.problem)}</h2>{_card(state, shown.problem)}"
    )


def _beside(state: State) -> str:
    return f'<h2>The service</h2>{_service(state)}<p><a href="../../live">What is live, every problem</a></p>'


def _service(state: State) -> str:
    if state.fault:
        return f'<p class="bad">The placement service does not answer: {escape(state.fault)}</p>'
    frozen = f" Frozen until {escape(state.frozen_until)}: nothing is pushed." if state.frozen_until else ""
    return f'<p class="good">The placement service answers at <code>{escape(state.url)}</code>.{frozen}</p>'


def _known(state: State, problem: str) -> bool:
    return state.policies.get(problem) is not None or state.live.get(problem) is not None


def _card(state: State, problem: str) -> str:
    said, record = state.policies.get(problem), state.live.get(problem)
    facts: dict[str, str] = {}
    if said is None:
        facts["answers"] = "unknown: the service was not reached" if state.fault else "the rule: no policy was pushed"
    else:
        facts["answers"] = said.digest or f"the rule {said.fallback}"
        facts["since"] = said.loaded_at or "unknown"
        facts["before it"] = said.previous_digest or "the rule"
        if said.degraded:
            facts["degraded"] = said.degraded
        if said.canary is not None:
            facts["canary"] = f"{said.canary.digest} answers {100 * said.canary.share:g} % since {said.canary.since}"
        if said.shadow_digest is not None:
            facts["shadow"] = said.shadow_digest
        if said.returned is not None:
            facts["went back by itself"] = f"{said.returned.at} from {said.returned.digest}: {said.returned.reason}"
    if record is not None:
        facts["the registry says"] = f"{record.digest}, record {record.sequence} of {record.decided_at}"
        if said is not None and said.digest != record.digest:
            facts["⚠"] = "the service and the registry do not agree; loadmaster registry verify says more"
    moments = state.hour.get(problem, ())
    decisions, fallbacks = (sum(getattr(one, name) for one in moments) for name in ("decisions", "fallbacks"))
    if decisions:
        slowest = max(one.p99_ms or 0.0 for one in moments)
        facts["last hour"] = f"{decisions:,} decisions, {fallbacks:,} by the rule, p99 up to {slowest:.1f} ms"
    elif not state.fault:
        facts["last hour"] = "no decision"
    return f'<div class="card"><h3>{escape(problem)}</h3>{_facts(facts)}</div>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>" for name, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} · Loadmaster</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}</main></body></html>\n"
    )
