"""Steps a second of training at 100 candidates, before and after, two seeds at once; writes docs/results/train_speed.*.

Each of two processes trains MaskablePPO on ``functions/serverless`` with 100 nodes: acting, stepping, four epochs. The
figure is decisions a second of CPU time, because other work on the machine must not count, while both processes run at
once, because they share its memory and caches. ``concatenated`` is the scorer as it was: request and context written
out for every candidate, tanh. The last line is a JSON object.

    python benchmarks/train_speed.py
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import platform
import pstats
import time
from pathlib import Path
from typing import Any

import torch
from sb3_contrib import MaskablePPO
from torch import Tensor, nn

from pipeline.policies import actor_critic, algorithms, maskable_ppo
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import CLIP, Scorer
from sched_env.vector import make_vec
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import run_cli

NODES, HIDDEN, EPOCHS, ENVS, ROLLOUT_STEPS = 100, 24, 4, 64, 32
CASES: dict[str, tuple[str, int]] = {
    "concatenated, tanh, batch 2,048 (before)": ("concatenated", 2048),
    "broadcast, tanh, batch 2,048": ("tanh", 2048),
    "broadcast, ReLU, batch 2,048": ("relu", 2048),
    "broadcast, ReLU, batch 512 (now)": ("relu", 512),
    "broadcast, ReLU, batch 256": ("relu", 256),
}
BEFORE, NOW = "concatenated, tanh, batch 2,048 (before)", "broadcast, ReLU, batch 512 (now)"
TARGET = 5000.0
OUT = Path("docs/results")


class Concatenated(Scorer):
    """The scorer as it was."""

    def __init__(self, spec: FeatureSpec, hidden: int) -> None:
        super().__init__(spec, hidden)
        inputs = len(spec.candidate) + len(spec.request)
        self.joint_encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.joint_head = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def encode(self, candidates: Tensor, request: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """As the scorer's."""
        rows = (candidates / self.candidate_scale).clamp(-CLIP, CLIP)
        asked = (request / self.request_scale).clamp(-CLIP, CLIP)
        encoded = self.joint_encoder(torch.cat([rows, asked.unsqueeze(1).expand(-1, rows.shape[1], -1)], dim=-1))
        feasible = mask.unsqueeze(-1).to(encoded.dtype)
        mean = (encoded * feasible).sum(dim=1) / feasible.sum(dim=1).clamp(min=1.0)
        largest = (encoded * feasible - 2.0 * (1.0 - feasible)).amax(dim=1)
        return encoded, torch.cat([mean, largest], dim=-1)

    def score(self, encoded: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        """As the scorer's."""
        context = pooled.unsqueeze(1).expand(-1, encoded.shape[1], -1)
        scores = self.joint_head(torch.cat([encoded, context], dim=-1)).squeeze(-1)
        return torch.where(mask, scores, torch.full_like(scores, -1e8))


class Tanh(Scorer):
    """Broadcast terms, the old activation."""

    def encode(self, candidates: Tensor, request: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """As the scorer's."""
        rows = (candidates / self.candidate_scale).clamp(-CLIP, CLIP)
        asked = (request / self.request_scale).clamp(-CLIP, CLIP)
        encoded = self.encode_hidden(self.encode_features(rows, asked).tanh()).tanh()
        feasible = mask.unsqueeze(-1).to(encoded.dtype)
        mean = (encoded * feasible).sum(dim=1) / feasible.sum(dim=1).clamp(min=1.0)
        largest = (encoded * feasible - 2.0 * (1.0 - feasible)).amax(dim=1)
        return encoded, torch.cat([mean, largest], dim=-1)

    def score(self, encoded: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        """As the scorer's."""
        scores = self.score_head(self.score_hidden(encoded, pooled).tanh()).squeeze(-1)
        return torch.where(mask, scores, torch.full_like(scores, -1e8))


SCORERS: dict[str, type[Scorer]] = {"concatenated": Concatenated, "tanh": Tanh, "relu": Scorer}


def model_of(scorer: str, batch: int, seed: int) -> MaskablePPO:
    actor_critic.Scorer = SCORERS[scorer]  # type: ignore[attr-defined]
    settings: Any = algorithms.settings(
        "maskable_ppo", hidden=HIDDEN, epochs=EPOCHS, batch=batch, envs=ENVS, rollout_steps=ROLLOUT_STEPS
    )
    env = Sb3VecEnv(make_vec("functions/serverless", settings.envs, seed, copy=True, nodes=NODES), missing_rate=0.01)
    model = maskable_ppo.make(env, settings, seed, device="cpu")
    assert isinstance(model, MaskablePPO)
    return model


def train(model: MaskablePPO, rollouts: int) -> float:
    """Return decisions a second of CPU time."""
    steps = model.n_steps * model.n_envs * rollouts
    began = time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.process_time() - began)


def work(seed: int, rounds: int, barrier: Any, results: Any) -> None:
    """Train every case in turn, in step with the other process."""
    torch.set_num_threads(1)
    models = {name: model_of(scorer, batch, seed) for name, (scorer, batch) in CASES.items()}
    train(models[NOW], 1)  # compiled code is loaded, buffers are there
    for _ in range(rounds):
        for name, model in models.items():  # interleaved: what else the machine does hits all of them alike
            count = sum(p.numel() for part, p in model.policy.named_parameters() if used(part, CASES[name][0]))
            barrier.wait()
            results.put((name, seed, train(model, 1), count))


def used(name: str, scorer: str) -> bool:
    """Leave out of the count what the scorer as it was inherits and never calls."""
    idle = ("encode_features", "encode_hidden", "score_hidden", "score_head")
    return scorer != "concatenated" or not name.startswith(tuple(f"scorer.{part}" for part in idle))


def profile(scorer: str, batch: int) -> list[tuple[str, float]]:
    """Return the share of CPU time of the largest parts."""
    torch.set_num_threads(1)
    model = model_of(scorer, batch, 0)
    train(model, 1)
    run = cProfile.Profile(time.process_time)
    run.runcall(train, model, 1)
    stats: Any = pstats.Stats(run)
    total = stats.total_tt
    parts = {
        "backward pass": "run_backward",
        "forward pass, learning": "evaluate_actions",
        "forward pass, acting": "forward",
        "environment": "step_wait",
        "optimiser": "step",
    }
    found: dict[str, float] = {}
    for (file, _, function), (_, _, _, cumulative, _) in stats.stats.items():
        for label, name in parts.items():
            ours = {"forward": "actor_critic", "evaluate_actions": "actor_critic", "step": "adam"}.get(name, "")
            if (function == name or (name in function and not ours)) and ours in file:
                found[label] = max(found.get(label, 0.0), cumulative / total)
    return sorted(((label, found.get(label, 0.0)) for label in parts), key=lambda row: -row[1])


def write(rows: dict[str, dict[str, float]], profiles: dict[str, list[tuple[str, float]]]) -> None:
    document = {"nodes": NODES, "epochs": EPOCHS, "cases": rows, "profiles": profiles, "machine": platform.processor()}
    (OUT / "train_speed.json").write_text(json.dumps(document, indent=2) + "\n")
    lines = [
        "# Speed of training",
        "",
        f"`python benchmarks/train_speed.py`: MaskablePPO, `functions/serverless`, {NODES} nodes, {EPOCHS} epochs, two",
        "seeds side by side, each on one core. Decisions a second of CPU time, best round, summed over both.",
        "",
        "| scorer | parameters | steps/s, two seeds | against before |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        ratio = row["steps_per_s"] / rows[BEFORE]["steps_per_s"]
        lines.append(f"| {name} | {row['parameters']:,.0f} | {row['steps_per_s']:,.0f} | {ratio:.2f} |")
    lines += ["", "Where the CPU time goes (one process, profiled; parts overlap in nothing):", ""]
    lines += ["| part | before | now |", "| --- | --- | --- |"]
    now = dict(profiles[NOW])
    lines += [f"| {label} | {share:.0%} | {now[label]:.0%} |" for label, share in profiles[BEFORE]]
    (OUT / "train_speed.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rollouts a case; the best counts")
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=work, args=(seed, rounds, barrier, results)) for seed in (0, 1)]
    for worker in workers:
        worker.start()
    best: dict[str, dict[int, float]] = {name: {} for name in CASES}
    parameters: dict[str, int] = {}
    for _ in range(2 * rounds * len(CASES)):
        name, seed, speed, parameters[name] = results.get()
        best[name][seed] = max(best[name].get(seed, 0.0), speed)
        print(f"{name}, seed {seed}: {speed:,.0f} steps/s", flush=True)
    for worker in workers:
        worker.join()
    rows = {
        name: {"parameters": float(parameters[name]), "steps_per_s": sum(by_seed.values())}
        for name, by_seed in best.items()
    }
    write(rows, {name: profile(*CASES[name]) for name in (BEFORE, NOW)})
    reached = rows[NOW]["steps_per_s"]
    print(json.dumps({"steps_per_s": reached, "target": TARGET, "reached": reached >= TARGET}))
    return 0


if __name__ == "__main__":
    run_cli(main)
