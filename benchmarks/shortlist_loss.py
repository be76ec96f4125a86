"""What the shortlist loses against the full scan, and what it saves.

    python benchmarks/shortlist_loss.py [--candidates 5000 20000 100000] [--bundle DIRECTORY] [--out docs/results]
    python benchmarks/shortlist_loss.py --bundle DIRECTORY --only-bundle       a night's policy alone, in seconds

Each request is decided twice over the same state, by the policy over all candidates and over the shortlist. ``same`` is
the share of requests for which both choose the same node; ``regret`` is what the full scan's own scores say the shorter
look lost, in parts of the distance from the best feasible candidate to the median one; ``rank`` is the place of the
chosen node in the full order. Policies: a network of the shipped size taught by ``oracle_greedy`` (the teacher of a
night), an untrained one, whose wishes no cheap score can guess, and with ``--bundle`` a trained one. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer
from placement import shortlist
from placement.settings import Settings
from sched_env import heuristics, problems
from sched_env.observation import Observation
from wire import bundle, graph, sample_bundle

SPEC = problems.spec("functions")
BUILD = problems.get("functions").build


def cluster(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A cluster of three kinds of nodes, from empty to full, of which one in ten is not billed now."""
    kind = rng.integers(0, 3, count)
    cpu = np.array([4.0, 8.0, 16.0])[kind]
    columns = {name: np.full(count, default) for name, (_, default) in problems.get("functions").state_fields.items()}
    columns |= {
        "cpu_capacity": cpu,
        "mem_capacity": 4.0 * cpu,
        "cpu_deployed": cpu * rng.beta(2, 1.5, count),
        "mem_deployed": 4.0 * cpu * rng.beta(2, 2, count),
        "net_used": rng.exponential(150.0, count),
        "disk_used": rng.exponential(700.0, count),
        "price": cpu * np.array([0.05, 0.048, 0.045])[kind] * rng.uniform(0.8, 1.2, count),
        "billed_left_s": np.where(rng.random(count) < 0.1, 0.0, rng.uniform(0, 1200, count)),
        "instances": rng.poisson(8, count).astype(float),
        "warm": (rng.random(count) < 0.05).astype(float),
    }
    return columns


def request(rng: np.random.Generator) -> dict[str, float]:
    return {
        "cpu": float(rng.choice([0.25, 0.5, 1.0, 2.0])),
        "mem": float(rng.choice([0.5, 1.0, 2.0, 4.0])),
        "net": float(rng.exponential(20.0)),
        "disk": float(rng.exponential(100.0)),
        "requests": float(rng.integers(1, 200)),
        "duration_s": float(rng.choice([30.0, 120.0, 600.0])),
    }


def taught(steps: int) -> bytes:
    """Teach a network of the shipped size to order candidates as ``oracle_greedy`` does."""
    torch.manual_seed(0)
    rng, scorer = np.random.default_rng(1), Scorer(SPEC, 64)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = []
        for _ in range(8):
            columns, asked = cluster(128, rng), request(rng)
            seen = BUILD(columns, asked)
            said = heuristics.score("functions", "oracle_greedy", columns, asked, seen.mask)
            batch.append((*seen, np.where(seen.mask, said, 0.0)))
        candidates, wanted, mask, target = (torch.from_numpy(np.stack(part)) for part in zip(*batch, strict=True))
        loss = (((scorer(candidates, wanted, mask) - 10.0 * target.float()) ** 2) * mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"taught: mean squared error {float(loss.detach()):.4f}", flush=True)
    return to_onnx(scorer, SPEC)


def score(session: Any, seen: Observation) -> np.ndarray:
    scores: np.ndarray = graph.scores(session, seen.candidates[None], seen.request[None], seen.mask[None])[0]
    return scores


def measure(session: Any, count: int, draws: int, settings: Settings) -> dict[str, float]:
    rng = np.random.default_rng(count)
    regrets, ranks, whole_ms, short_ms, listed = [], [], [], [], []
    for number in range(draws):
        columns, asked = cluster(count, rng), request(rng)
        started = time.thread_time()
        seen = BUILD(columns, asked)
        full = np.where(seen.mask, score(session, seen), -np.inf)
        whole_ms.append((time.thread_time() - started) * 1e3)
        started = time.thread_time()
        mask, cheap = shortlist.feasible("functions", columns, asked, "worst_fit")
        rows = shortlist.choose(mask, cheap, f"pod-{number}", settings)
        some = BUILD({name: column[rows] for name, column in columns.items()}, asked)
        scores = score(session, some)
        short_ms.append((time.thread_time() - started) * 1e3)
        chosen = rows[int(np.where(some.mask, scores, -np.inf).argmax())]
        feasible = full[seen.mask]
        spread = max(float(feasible.max() - np.median(feasible)), 1e-9)
        regrets.append(float(full.max() - full[chosen]) / spread)
        ranks.append(int((feasible > full[chosen]).sum()))
        listed.append(len(rows))
    return {
        "draws": draws,
        "listed": round(float(np.mean(listed)), 1),
        "same": round(float(np.mean(np.array(ranks) == 0)), 3),
        "regret_mean": round(float(np.mean(regrets)), 4),
        "regret_p95": round(float(np.percentile(regrets, 95)), 4),
        "rank_median": float(np.median(ranks)),
        "rank_p95": float(np.percentile(ranks, 95)),
        "full_ms": round(float(np.median(whole_ms)), 2),
        "shortlist_ms": round(float(np.median(short_ms)), 2),
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        "| policy | candidates | draws | same choice | regret | its p95 | rank | its p95 | full scan | shortlist |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, sizes in results.items():
        for count, one in sizes.items():
            lines.append(
                f"| {name} | {int(count):,} | {one['draws']} | {one['same']:.1%} | {one['regret_mean']:.4f} | "
                f"{one['regret_p95']:.4f} | {one['rank_median']:g} | {one['rank_p95']:g} | {one['full_ms']} ms | "
                f"{one['shortlist_ms']} ms |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[5_000, 20_000, 100_000])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1200, help="of teaching")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--only-bundle", action="store_true", help="leave out the two networks that are made here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policies: dict[str, bytes] = {}
    if not options.only_bundle:
        policies["taught by oracle_greedy"] = taught(options.steps)
        policies["untrained"] = sample_bundle.graph(SPEC, seed=1, hidden=64).SerializeToString()
    if options.bundle:
        policies["trained"] = bundle.check(bundle.read(options.bundle)).policy
    settings = Settings()
    results: dict[str, Any] = {}
    for name, data in policies.items():
        session = graph.open_session(data)
        for count in options.candidates:
            draws = options.draws if count <= 20_000 else max(20, options.draws // 3)
            found = measure(session, count, draws, settings)
            results.setdefault(name, {})[str(count)] = found
            print(name, count, found, flush=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    report = {
        "benchmark": "shortlist_loss",
        "best": settings.shortlist_best,
        "sample": settings.shortlist_sample,
        "machine": machine,
        "results": results,
    }
    if options.out:
        (options.out / "shortlist.json").write_text(json.dumps(report, indent=1) + "\n")
        text = (
            "# What the shortlist loses\n\n`python benchmarks/shortlist_loss.py --out docs/results`: best "
            f"{settings.shortlist_best} of each of three cheap scores and {settings.shortlist_sample} by chance, CPU "
            f"time of one thread, {machine['cores']} cores with other work (load {machine['load']}). Regret is in "
            "parts of the distance from the best feasible candidate to the median, by the full scan's scores.\n\n"
            f"{table(results)}\n\nBy default the shortlist begins above {settings.shortlist_above:,} candidates. An "
            "untrained network wants what no cheap score can guess: there it is the random sample that answers, and "
            "the regret is that of the best of a few hundred.\n"
        )
        (options.out / "shortlist.md").write_text(text)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
