"""Stock Stable-Baselines3 on the tutorial's environment: PPO, A2C and DQN as they come, against chance.

Nothing of an agent is set but its seed: ``MultiInputPolicy``, 100,000 steps. The environment is ``functions/tutorial``
(the reward of the tutorial, in [-1, 0]); an infeasible choice costs the tutorial's 10 and is offered again
(``penalise``). It is shown in four ways: ``plain`` as it comes, in its units; ``scaled`` on fixed scales
(``NormalisedObservation``); ``steady`` on those scales, with rewards divided by their running spread while it learns
(SB3's own ``VecNormalize(env, norm_obs=False)``); ``masked`` on those scales and with the feasible nodes beside them
(``mask=True``: stock agents take no mask and would have to learn it). What is learned is judged by the tutorial's own
reward on tasks that no training has seen, on 100 episodes of as many arrivals each, every one paired with random
feasible placement of the same arrivals. Greedy, the last weights.

Finished trainings are kept in docs/results/stock_sb3.json; only missing ones are run. The last line is a JSON object.

    python benchmarks/stock_sb3.py [--algorithm dqn --seeds 5 --observation plain]
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.normalised import NormalisedObservation
from sched_env.rollout import run_episodes
from wire.errors import run_cli

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": A2C, "dqn": DQN}
STEPS, EPISODES, ARRIVALS = 100_000, 100, 200
UNSEEN = {"trace_seed": 1, "horizon": ARRIVALS}
"""Tasks drawn by another seed than those of the trainings; an episode is so many arrivals, whatever is done."""
CHANCE, RULES = "random_feasible", ("random_feasible", "least_allocated", "oracle_greedy")
OUT = Path("docs/results/stock_sb3.json")
STEADY = "steady"
OBSERVATIONS: dict[str, Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = {
    STEADY: NormalisedObservation,
    "masked": lambda env: NormalisedObservation(env, mask=True),
    "scaled": NormalisedObservation,
    "plain": lambda env: env,
}
"""What agents that scale nothing and take no mask are shown."""


def make(observation: str, **keys: Any) -> gymnasium.Env[Any, Any]:
    """Make the tutorial's environment."""
    env = ServerlessSchedulingEnv(scenario="functions/tutorial", invalid_action="penalise", **keys)
    return OBSERVATIONS[observation](env)


def starts(episodes: int) -> list[int]:
    """Return the first rows of episodes that share no arrival."""
    return [ARRIVALS * episode for episode in range(episodes)]


def judge(model: BaseAlgorithm, observation: str, episodes: int) -> dict[str, list[float]]:
    """Play the episodes greedily."""
    env = make(observation, **UNSEEN)
    sheets = []
    for start in starts(episodes):
        seen, _ = env.reset(options={"start": start})
        over = False
        while not over:
            action, _ = model.predict(seen, deterministic=True)
            seen, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        sheets.append(info["episode_metrics"])
        if sheets[-1]["placed"] + sheets[-1]["rejected"] != ARRIVALS:
            raise RuntimeError(f"the episode from {start} had {sheets[-1]} and not {ARRIVALS} arrivals")
    return {name: [float(sheet[name]) for sheet in sheets] for name in ("return", "infeasible")}


def one(algorithm: str, observation: str, seed: int, steps: int, episodes: int) -> dict[str, Any]:
    """Train once, with SB3's defaults, and judge."""
    began = time.process_time()
    env: Any = DummyVecEnv([lambda: Monitor(make(observation))])
    if observation == STEADY:
        env = VecNormalize(env, norm_obs=False)
    model = ALGORITHMS[algorithm]("MultiInputPolicy", env, seed=seed)  # type: ignore[call-arg]
    model.learn(steps)
    return {"steps": steps, "cpu_s": round(time.process_time() - began, 1), **judge(model, observation, episodes)}


def rules(episodes: int) -> dict[str, list[float]]:
    """Play the same episodes by rules."""
    env: Any = make("plain", **UNSEEN).unwrapped
    return {
        rule: [float(row["return"]) for row in run_episodes(env.scenario, rule, starts(episodes), trace=env.many.trace)]
        for rule in RULES
    }


def better_by(document: dict[str, Any], run: dict[str, Any]) -> tuple[float, float]:
    """Return the mean paired difference to chance, and half its 95 % interval; the episodes share no arrival."""
    difference = np.array(run["return"]) - np.array(document["rules"][CHANCE])
    return float(difference.mean()), float(1.96 * difference.std(ddof=1) / np.sqrt(difference.size))


def write(document: dict[str, Any], out: Path) -> None:
    """Write the numbers and the page."""
    out.write_text(json.dumps(document) + "\n")
    means = {rule: float(np.mean(values)) for rule, values in document["rules"].items()}
    lines = [
        "# Stock Stable-Baselines3 on the tutorial's environment",
        "",
        "`python benchmarks/stock_sb3.py`: PPO, A2C and DQN with SB3's default settings, `MultiInputPolicy`, "
        f'{STEPS:,} steps on `functions/tutorial`, `invalid_action="penalise"`, which costs 10. The environment is '
        "shown in four ways: `plain` as it comes, in its units; `scaled` on fixed scales "
        "(`NormalisedObservation(env)`); `steady` on those scales and with rewards divided by their running spread "
        "while it learns (SB3's own `VecNormalize(env, norm_obs=False)`); `masked` on those scales with the feasible "
        "nodes beside them (`mask=True`). Judged greedily, by the tutorial's own reward, on "
        f"{len(document['rules'][CHANCE])} episodes of {ARRIVALS} arrivals that no training has seen, paired with "
        "random feasible placement of the same arrivals.",
        "",
        "`steady` is what the docs tell users of stock agents: nothing is added to the tutorial's observation and "
        "nothing is set of an agent. Why both parts are needed: stock agents scale nothing. Units (requests up to 99, "
        "MB/s, IOPS beside shares) are too much for PPO and A2C within these steps, and SB3's running scales in place "
        "of fixed ones are too much for PPO (seed 0: -1,209; A2C -43.5). A penalty of 10 beside rewards of a third is "
        "too much for A2C, which updates every five steps: with `scaled` alone it stays below chance; with rewards "
        "steadied, or with the mask in its observation (`masked`), it learns what is feasible. Seeds that are missing "
        "below were not run.",
        "",
        f"Mean return: {', '.join(f'`{rule}` {mean:.2f}' for rule, mean in means.items())}.",
    ]
    for observation, algorithms in document["runs"].items():
        lines += [
            "",
            f"## {observation}",
            "| algorithm | seed | return | better than chance by, 95 % | episodes won | infeasible | CPU s |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for algorithm, runs in algorithms.items():
            for seed, run in sorted(runs.items()):
                mean, half = better_by(document, run)
                won = np.mean(np.array(run["return"]) > np.array(document["rules"][CHANCE]))
                lines.append(
                    f"| {algorithm} | {seed} | {np.mean(run['return']):.2f} | {mean:+.2f} ± {half:.2f} "
                    f"| {won:.0%} | {np.mean(run['infeasible']):.2f} | {run['cpu_s']:.0f} |"
                )
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", action="append", choices=tuple(ALGORITHMS))
    parser.add_argument("--observation", action="append", choices=tuple(OBSERVATIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--out", type=Path, default=OUT, help="what is there is kept (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    document.setdefault("rules", rules(options.episodes))
    wanted = itertools.product(
        range(options.seeds), options.observation or OBSERVATIONS, options.algorithm or ALGORITHMS
    )
    for seed, observation, algorithm in wanted:
        runs = document["runs"].setdefault(observation, {}).setdefault(algorithm, {})
        if str(seed) in runs:
            continue
        runs[str(seed)] = run = one(algorithm, observation, seed, options.steps, options.episodes)
        print(f"{observation} {algorithm} {seed}: {np.mean(run['return']):.2f} in {run['cpu_s']} s", flush=True)
        write(document, options.out)
    found = {
        f"{observation}/{algorithm}/{seed}": round(better_by(document, run)[0], 3)
        for observation, algorithms in document["runs"].items()
        for algorithm, runs in algorithms.items()
        for seed, run in runs.items()
    }
    print(json.dumps({"below_chance": sorted(name for name, gain in found.items() if gain <= 0), "better_by": found}))
    return 0


if __name__ == "__main__":
    run_cli(main)
