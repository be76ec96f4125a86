"""Server hours by predicted lives: huawei-east-1, VMs placed by the environment's own kernels.

The lifetime model is honest: VMs below index 50,000, those that had not ended when number 50,000 came taken as not
ended (Kaplan-Meier), by flavour and quarter of the day, asked again as VMs live on: what is left at an age is the
quantile of those that lived longer. Its settings are chosen on VMs 50,000-70,000; 70,000-110,000 judge it.

``least_extension`` takes the server whose end moves least. ``careful`` does as ``numa_first_fit``, unless the server
that this takes would have to stay longer by the lower quantile of the VM's life, and another would not by the upper.
``known`` and ``noisy`` are told the lives, the latter with an error of so much in their logarithm.

    python benchmarks/lifetimes.py --out docs/results
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from sched_env.vector import make_vec
from sched_env.vm.events import CPU, HALVES, MEM, TIME
from wire.errors import run_cli

TRAIN, VALIDATION, TEST = 50_000, 70_000, 110_000
AGES_S = np.array([0.0, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 57600, 86400, 172800, 345600, 691200])
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
LEAST = 100
"""VMs that a flavour needs in a quarter of the day to be told from its others."""


def remaining(life_s: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Quantiles of what is left at each age, [ages, quantiles], from lives of which some have not ended."""
    order = np.argsort(life_s, kind="stable")
    life_s, ended = life_s[order], ended[order]
    at_risk = np.arange(life_s.size, 0, -1)
    survival = np.cumprod(1.0 - ended / at_risk)
    found = np.zeros((AGES_S.size, len(QUANTILES)))
    for row, age in enumerate(AGES_S):
        first = np.searchsorted(life_s, age, side="right")
        before = survival[first - 1] if first else 1.0
        for column, quantile in enumerate(QUANTILES):
            at = first + np.searchsorted(-survival[first:], -(1.0 - quantile) * before, side="left")
            found[row, column] = life_s[min(at, life_s.size - 1)] - age
    return np.maximum(found, 1.0)


class Model:
    """Quantiles of remaining lives, [groups, ages, quantiles], and the group of each VM."""

    def __init__(self, cpu: np.ndarray, mem: np.ndarray, arrival_s: np.ndarray, life_s: np.ndarray) -> None:
        flavour = np.unique(np.stack([cpu, mem], axis=1), axis=0, return_inverse=True)[1].ravel()
        quarter = (arrival_s // 21_600).astype(int) % 4
        now = arrival_s[TRAIN]
        seen = np.minimum(life_s[:TRAIN], now - arrival_s[:TRAIN])
        ended = (arrival_s[:TRAIN] + life_s[:TRAIN] <= now).astype(float)
        self.group = flavour * 4 + quarter
        self.tables = np.zeros((self.group.max() + 1, AGES_S.size, len(QUANTILES)))
        whole = remaining(seen, ended)
        for number in range(self.tables.shape[0]):
            own = self.group[:TRAIN] == number
            alike = flavour[:TRAIN] == number // 4
            rows = own if own.sum() >= LEAST else alike
            self.tables[number] = remaining(seen[rows], ended[rows]) if rows.sum() >= LEAST else whole

    def errors(self, life_s: np.ndarray) -> dict[str, float]:
        """How far the median is from the truth on the test VMs, at arrival, and whom the outer quantiles hold."""
        told = self.tables[self.group[VALIDATION:TEST], 0]
        truth = life_s[VALIDATION:TEST]
        error = np.log(truth + 1.0) - np.log(told[:, 2] + 1.0)
        return {
            "log_rmse": float(np.sqrt((error**2).mean())),
            "log_mae": float(np.abs(error).mean()),
            "log_spread_of_lives": float(np.log(truth + 1.0).std()),
            "between_10_and_90": float(((truth >= told[:, 0]) & (truth <= told[:, 4])).mean()),
        }


@njit(cache=False)
def ends(now, born, group, server, count, table, ages, quantile, out):  # type: ignore[no-untyped-def]
    out[:] = now
    for k in range(count):
        age = now - born[k]
        place = np.searchsorted(ages, age, side="right") - 1
        left = table[group[k], place, quantile] - (age - ages[place])
        out[server[k]] = max(out[server[k]], now + max(left, 60.0))


@njit(cache=False)
def known_ends(now, end, server, count, out):  # type: ignore[no-untyped-def]
    out[:] = now
    for k in range(count):
        out[server[k]] = max(out[server[k]], end[k])


def imbalance(env: Any, need: np.ndarray, half: int) -> float:
    """How uneven the halves of a server would be with the request there, on the worse resource."""
    other, split = half ^ 1, need[HALVES] - 1.0
    uneven = 0.0
    for free, column, whole in (
        (env.state.cpu[0], CPU, env.params.half_cpu),
        (env.state.mem[0], MEM, env.params.half_mem),
    ):
        uneven = max(uneven, abs((free[half] - need[column]) - (free[other] - need[column] * split)) / whole)
    return uneven


def play(env: Any, start: int, rule: str, model: Model, quantile: int = 2, noise: float = 0.0) -> dict[str, float]:
    """Place the VMs of an episode by a rule; server hours and how often it was not where first fit would be."""
    events, state = env.events, env.state
    env.reset(options={"starts": [start], "park": True})
    size = 20_000
    born, end, group, server = np.zeros(size), np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64)
    slots = np.zeros(size, np.int64)
    at: dict[int, int] = {}
    count, deviated, decisions, row = 0, 0, 0, int(state.env.row[0])
    creation = np.cumsum(events.slot >= 0) - 1
    drawn = np.random.default_rng(0).normal(0.0, 1.0, events.slot.size)
    low, high = np.zeros(env.scenario.most_servers), np.zeros(env.scenario.most_servers)
    while env.buffers.active[0]:
        now, need = float(state.env.clock[0]), events.rows[row]
        mask = env.buffers.mask[0]
        fits = mask[0::2] | mask[1::2]
        first = int(fits.argmax())
        chosen = first
        servers = int(state.env.servers[0])
        if rule in ("known", "noisy"):
            known_ends(now, end, server, count, low)
            mine = now + events.life_s[row] * np.exp(noise * drawn[row])
            cost = np.where(fits, np.maximum(mine - low[: fits.size], 0.0), np.inf)
            chosen = int(cost.argmin())
        elif rule in ("least_extension", "careful"):
            number = int(model.group[creation[row]])
            ends(now, born, group, server, count, model.tables, AGES_S, quantile, low)
            if rule == "least_extension":
                mine = now + model.tables[number, 0, quantile]
                cost = np.where(fits, np.maximum(mine - low[: fits.size], 0.0), np.inf)
                chosen = int(cost.argmin())
            else:  # quantile is the lower one, its mirror the upper
                ends(now, born, group, server, count, model.tables, AGES_S, 4 - quantile, high)
                shortest, longest = (now + model.tables[number, 0, q] for q in (quantile, 4 - quantile))
                if shortest > high[first]:
                    holds = fits & (low[: fits.size] >= longest)
                    chosen = int(holds.argmax()) if holds.any() else first
        elif rule == "occupied_first":
            busy = fits & np.isfinite(state.since[0, : fits.size])
            chosen = int(busy.argmax()) if busy.any() else first
        deviated += chosen != first
        decisions += 1
        halves = [half for half in (2 * chosen, 2 * chosen + 1) if mask[half]]
        half = min(halves, key=partial(imbalance, env, need))
        slot = int(events.slot[row])
        at[slot] = count
        born[count], group[count], server[count], slots[count] = now, model.group[creation[row]], chosen, slot
        end[count] = now + events.life_s[row] * (np.exp(noise * drawn[row]) if rule == "noisy" else 1.0)
        count += 1
        env.step([half])
        after = int(state.env.row[0])
        for gone in range(row + 1, min(after, events.slot.size)):
            if events.slot[gone] < 0 and (place := at.pop(~int(events.slot[gone]), None)) is not None:
                count -= 1
                if place != count:
                    for column in (born, end, group, server, slots):
                        column[place] = column[count]
                    at[int(slots[place])] = place
        row = after
    hours = float(env.buffers.metrics[0][env.METRICS.index("cost_usd")])
    placed = float(env.buffers.metrics[0][env.METRICS.index("placed")])
    return {"server_hours": hours, "placed": placed, "decisions": decisions, "deviated": deviated / decisions,
            "servers": float(servers)}  # fmt: skip


def measure(trace: Path, validation: int, test: int) -> dict[str, Any]:
    """Both scenarios: settings on the validation VMs, then the test VMs."""
    result: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    for scenario in ("vm/recovering-l", "vm/expanding"):
        env: Any = make_vec(scenario, 1, 0, trace=str(trace / "events.csv.gz"), horizon=validation)
        creates = np.flatnonzero(env.events.slot >= 0)
        vms = env.events.rows[creates]
        model = Model(
            vms[:, CPU] * vms[:, HALVES], vms[:, MEM] * vms[:, HALVES], vms[:, TIME], env.events.life_s[creates]
        )
        result["model"] = model.errors(env.events.life_s[creates])
        arms: list[tuple[str, int, float]] = [("first_fit", 2, 0.0)]
        arms += [("least_extension", q, 0.0) for q in range(5)] + [("careful", 0, 0.0), ("careful", 1, 0.0)]
        arms += [("occupied_first", 2, 0.0), ("known", 2, 0.0), ("noisy", 2, 0.5), ("noisy", 2, 1.0)]
        chosen = {arm: play(env, int(creates[TRAIN]), arm[0], model, arm[1], arm[2]) for arm in arms}
        honest = [arm for arm in arms if arm[0] in ("least_extension", "careful")]
        best = min(honest, key=lambda arm: chosen[arm]["server_hours"])
        env = make_vec(scenario, 1, 0, trace=str(trace / "events.csv.gz"), horizon=test)
        tested = [("first_fit", 2, 0.0), best, ("careful", 0, 0.0), ("occupied_first", 2, 0.0), ("known", 2, 0.0)]
        judged = {
            arm: play(env, int(creates[VALIDATION]), arm[0], model, arm[1], arm[2]) for arm in dict.fromkeys(tested)
        }
        for name, found in (("validation", chosen), ("test", judged)):
            base = found["first_fit", 2, 0.0]["server_hours"]
            result[f"{scenario} {name}"] = [
                {"rule": arm[0], "quantile": QUANTILES[arm[1]], "noise": arm[2], **row,
                 "against_first_fit_percent": 100.0 * (row["server_hours"] / base - 1.0)}
                for arm, row in found.items()
            ]  # fmt: skip
        result[f"{scenario} chosen"] = f"{best[0]} at {QUANTILES[best[1]]}"
    return result


def page(result: dict[str, Any], command: str) -> str:
    """The tables for people."""
    model, about = result["model"], " ".join(__doc__.split("\n\n    ")[0].split())
    lines = [
        "# Lives of VMs, and server hours by them",
        "",
        f"Made by `{command}`; nothing here is timed. {about}",
        "",
        "Error of the model on VMs 70,000-110,000 at arrival, natural logarithm of the life: root mean square "
        f"{model['log_rmse']:.2f}, mean {model['log_mae']:.2f}; lives themselves are spread by "
        f"{model['log_spread_of_lives']:.2f}. {100 * model['between_10_and_90']:.0f} % of the lives lie between the "
        "10 % and 90 % quantiles.",
    ]
    for key, rows in result.items():
        if not isinstance(rows, list):
            continue
        lines += [
            "",
            f"## {key}",
            "",
            "| rule | quantile | error | server hours | against first fit | deviated | placed |",
        ]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [
            f"| {row['rule']} | {row['quantile']} | {row['noise'] or '–'} | {row['server_hours']:,.0f} | "
            f"{row['against_first_fit_percent']:+.2f} % | {100 * row['deviated']:.1f} % | {row['placed']:,.0f} |"
            for row in rows
        ]
    chosen = [f"{key.removesuffix(' chosen')}: {value}" for key, value in result.items() if key.endswith(" chosen")]
    lines += ["", f"Chosen on validation, of the honest ones: {'; '.join(chosen)}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=Path("../shared/data/huawei-east-1"))
    parser.add_argument("--validation", type=int, default=20_000, help="VMs that settings are chosen on")
    parser.add_argument("--test", type=int, default=40_000, help="VMs that judge")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.trace, options.validation, options.test)
    if options.out:
        (options.out / "lifetimes.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "lifetimes.md").write_text(page(result, "python benchmarks/lifetimes.py --out docs/results"))
    print(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
