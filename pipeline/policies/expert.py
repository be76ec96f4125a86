"""The counterfactual learner: a scorer that says what each candidate is worth, because each was tried.

A segment visits whole episodes of the train windows, by the base rule at first, later by the student mixed with it. At
states drawn from all over them every candidate is forced in a copy of its own, and the base rule goes on for some
decisions on the recorded future, the same for all candidates (``counterfactual``). The scorer learns these advantages
by regression, from all segments so far. Validation chooses among the segments; when it gains no more, the training
ends. One improvement of a good rule is what is learned, so nothing has to be explored, and no value to be guessed.

What a ``kill -9`` costs is the segment under way: states of a finished one are kept in a file beside the checkpoint,
and every segment draws from (seed, segment) alone. A resumed training ends with the same weights, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import configure_logger, get_device
from torch import Tensor

from pipeline.policies import checkpoint, rules
from pipeline.policies.checkpoint import CHECKPOINT_FILE, Row, Trained, drawn, seed_torch_and_numpy, weights
from pipeline.policies.counterfactual import Trials, Visited, packed
from pipeline.policies.polish import EPISODES, PART, Polish
from pipeline.policies.sb3 import hide
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.policies.settings import Common, Falling, Positive, Rate
from sched_env import heuristics
from sched_env.rollout import chooser
from sched_env.vector import PlacementVectorEnv
from wire.errors import ConfigError

MIB = 1 << 20
POLISHED = "polished"
"""In a checkpoint: generations of the search over whole episodes that are done; not there before it."""
FIRST_GENERATION = 1_000
"""Its draws have seeds of their own: no training has so many segments."""


class ExpertSettings(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``expert.yaml``; ``envs`` episodes are visited in a segment."""

    patience: Positive
    """Segments without a gain on validation after which the training ends."""
    base: str | None
    """The rule that goes on after a forced decision, and whose states come first; null: the best of all on the
    validation episodes, not the fallback."""
    decisions: Positive | Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]
    """How far a trial looks, the forced decision included. Effects die out within tens of decisions where instances are
    short; beyond, every decision adds noise and time. Of several a training takes the one of its seed, so validation,
    which chooses among seeds, chooses among them too."""
    states: Positive
    """States a segment whose candidates are tried, drawn evenly from all decisions of its episodes."""
    student_share: Rate
    """From the second segment on: share of the decisions that the student takes. It must see where its own choices
    lead; the rest keeps states of the rule in the data."""
    clip: Annotated[float, msgspec.Meta(gt=0)]
    """How far below the best of its state a candidate counts, in units of the advantages' root mean square. How bad a
    hopeless one is does not matter, and a few such would be all that the error consists of."""
    epochs: Positive
    """Passes over the data at the end of each segment."""
    student_from: Annotated[int, msgspec.Meta(ge=0)]
    """From this segment on trials go on by the student of the segment before, not by the base rule: an improvement of
    an improvement, where the rule's own is exhausted. 0: never; the first always goes by the rule."""
    kept: Positive
    """Segments whose data are learned from, the latest: what a state was worth under an early policy is not what it is
    worth under a better one."""
    batch: Positive
    most_mib: Positive
    """Memory for the data of all segments, float32; a setting that needs more is refused at the start."""
    polish: Annotated[int, msgspec.Meta(ge=0)]
    """Generations of a search over whole episodes, from the best weights on (``polish.py``); 0: none. It looks at the
    return alone: validation takes what it finds only within the guardrails."""
    shuffled: bool
    """The control: every advantage goes to another candidate of another state. Such a student must gain nothing."""

    @property
    def looks(self) -> int:
        """The segments, and the parts of the search over whole episodes."""
        return self.segments - (-self.polish // PART)


def train(
    make_env: Callable[[int], PlacementVectorEnv],
    settings: ExpertSettings,
    *,
    seed: int,
    scratch: Path,
    validate: Callable[[Scorer | str], Row],
    objective: Callable[[Row], float],
    report: Callable[[int, Row], None],
    device: str = "cpu",
    tensorboard: Path | None = None,
) -> Trained:
    """Train, resuming from ``scratch``; arguments as those of :func:`pipeline.policies.training.train`."""
    env = make_env(settings.envs)
    seed_torch_and_numpy(seed, 0)
    scorer = Scorer(env.feature_spec, settings.hidden).to(get_device(device))
    logger = configure_logger(0, str(tensorboard) if tensorboard else None, "expert", reset_num_timesteps=False)
    data: list[Visited] = []
    lengths = settings.decisions if isinstance(settings.decisions, tuple) else (settings.decisions,)
    decisions = lengths[seed % len(lengths)]

    def ended(state: dict[str, Any]) -> bool:
        over = state["segment"] >= settings.segments or POLISHED in state
        return bool(over or _idle(state["curve"], objective, settings.patience))

    state = _resumed(scratch, ended, data)
    if state is None:
        base, bar = _base(env, settings, validate, objective)
        start: Row = {"segment": 0.0, "steps": 0.0, "states": 0.0, "base": bar} | validate(scorer)
        state = {"segment": 0, "curve": [start], "base": base, "weights": weights(scorer), "best": weights(scorer)}
        report(0, start)
    scorer.load_state_dict(state["weights"])
    curve: list[Row] = state["curve"]
    while not ended(state):
        segment = state["segment"] + 1
        seed_torch_and_numpy(seed, segment)
        student = None if segment == 1 else scorer
        on = student if 0 < settings.student_from <= segment else None
        found, taken = _visit(env, state["base"], settings, student, decisions, drawn(seed, segment), on)
        _check(found, settings)
        data.append(found)
        loss = fit(scorer, data[-settings.kept :], settings)
        row = {
            "segment": float(segment),
            "steps": curve[-1]["steps"] + taken,
            "states": float(sum(len(each.mask) for each in data)),
            "loss": loss,
            "base": curve[0]["base"],
        } | validate(scorer)
        if objective(row) > max(map(objective, curve)):
            state["best"] = weights(scorer)
        curve.append(row)
        state.update(segment=segment, weights=weights(scorer))
        checkpoint.save(_data_file(scratch, segment), {k: torch.from_numpy(v) for k, v in found._asdict().items()})
        checkpoint.save(scratch / CHECKPOINT_FILE, state)
        _log(logger, row)
        report(segment, row)
    for file in scratch.glob("states-*.pt"):  # what follows needs their data no more
        file.unlink()
    scorer.cpu()
    if settings.polish:

        def looked(row: Row) -> None:
            row |= validate(scorer)
            if objective(row) > max(map(objective, curve)):
                state["best"] = weights(scorer)
            curve.append(row)
            state["weights"] = weights(scorer)
            checkpoint.save(scratch / CHECKPOINT_FILE, state)
            _log(logger, row)
            report(int(row["segment"]), row)

        _polish(make_env(EPISODES), scorer, settings.polish, seed, state, looked)
    scorer.load_state_dict(state["best"])
    return Trained(scorer=scorer, curve=curve)


def _polish(
    env: PlacementVectorEnv,
    scorer: Scorer,
    generations: int,
    seed: int,
    state: dict[str, Any],
    looked: Callable[[Row], None],
) -> None:
    """Search on from the best weights, looking at validation now and then; goes on where it was stopped."""
    if POLISHED not in state:
        state |= {POLISHED: 0, "weights": state["best"]}
    scorer.load_state_dict(state["weights"])
    polish = Polish(env, scorer, state.get("polish"))
    state["polish"] = polish.kept
    while state[POLISHED] < generations:
        last, before = state["curve"][-1], polish.decisions
        for number in range(state[POLISHED], min(state[POLISHED] + PART, generations)):
            polish.generation(drawn(seed, FIRST_GENERATION + number))
            state[POLISHED] = number + 1
        more = {"segment": last["segment"] + 1.0, "steps": last["steps"] + polish.decisions - before}
        looked({**{name: last[name] for name in ("states", "base")}, **more})


def fit(scorer: Scorer, data: list[Visited], settings: ExpertSettings) -> float:
    """Regress advantages into the scores; returns the mean error of the last pass, 1 being that of knowing nothing.

    Scores count by their differences alone, so both sides are centred over a state's feasible candidates.
    """
    candidates, request, mask, worth = map(torch.from_numpy, packed(data))
    scale = worth[mask].square().mean().sqrt().clamp(min=1e-12)
    best = torch.where(mask, worth, -torch.inf).amax(1, keepdim=True)
    target = _centred(((worth - best) / scale).clamp(min=-settings.clip), mask)
    target /= target[mask].square().mean().sqrt().clamp(min=1e-12)
    device = scorer.candidate_scale.device
    optimizer = torch.optim.Adam(scorer.parameters(), lr=settings.learning_rate)
    steps = settings.epochs * -(-len(mask) // settings.batch)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: Falling(1.0)(1.0 - step / steps))
    loss = 0.0
    for _ in range(settings.epochs):
        squares, count = 0.0, 0
        for rows in torch.split(torch.randperm(len(mask)), settings.batch):
            here = mask[rows].to(device)
            scores = _centred(scorer(candidates[rows].to(device), request[rows].to(device), here), here)
            errors = (scores - target[rows].to(device))[here]
            optimizer.zero_grad()
            errors.square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            squares, count = squares + float(errors.detach().square().sum()), count + errors.numel()
        loss = squares / count
    return loss


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """Take off the mean over the feasible; 0 where infeasible."""
    feasible = torch.where(mask, values, torch.zeros_like(values))
    return torch.where(mask, values - feasible.sum(1, keepdim=True) / mask.sum(1, keepdim=True), 0.0)


def _visit(
    env: PlacementVectorEnv,
    base: str,
    settings: ExpertSettings,
    student: Scorer | None,
    decisions: int,
    seed: int,
    on: Scorer | None = None,
) -> tuple[Visited, float]:
    """Play episodes to their ends, draw states from all of them, and try their candidates; returns decisions taken too.

    The episodes are played twice, by the same actions: how long they are is known only at their end. Trials go on by
    ``on``, without one by the base rule.
    """
    rng = np.random.default_rng(seed)
    rule = heuristics.batch(base, env, seed)
    env.reset(seed=seed, options={"park": True})
    learned = chooser(env, TorchPolicy(student)) if student is not None else None
    played: list[NDArray[np.int64]] = []
    open_to_choice: list[NDArray[np.bool_]] = []
    while env.buffers.active.any():
        actions = rule().copy()
        if learned is not None:
            actions = np.where(rng.random(env.num_envs) < settings.student_share, learned(None), actions)
        played.append(actions)
        open_to_choice.append(env.buffers.active & (env.buffers.feasible > 1))
        env.step(actions)
    chosen = _drawn_from(np.stack(open_to_choice), settings.states, rng)
    trials = Trials(env, base if on is None else TorchPolicy(on), decisions, seed)
    env.reset(seed=seed, options={"park": True})
    parts: list[Visited] = []
    for actions, here in zip(played, chosen, strict=True):
        if here.any():
            parts.append(trials.of(np.flatnonzero(here)))
        env.step(actions)
    found = packed(parts)
    if settings.missing_rate:
        hide({"candidates": found.candidates, "request": found.request}, env.feature_spec, settings.missing_rate, rng)
    if settings.shuffled:
        found = _shuffled(found, rng)
    return found, float(trials.taken + len(played) * env.num_envs)


def _drawn_from(open_to_choice: NDArray[np.bool_], states: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose decisions of played episodes, [steps, episodes]: whole steps, the last of them in part.

    Episodes have nothing to do with each other, so a step is as many states from all over the trace; and whole ones
    are tried at once, which makes trials by a network several times as fast.
    """
    if not open_to_choice.any():
        raise ConfigError(
            f"no decision of {open_to_choice.shape[1]} episodes left a choice", "episodes with something to decide"
        )
    order = rng.permutation(len(open_to_choice))
    places = [(step, row) for step in order for row in rng.permutation(np.flatnonzero(open_to_choice[step]))]
    chosen = np.zeros_like(open_to_choice)
    chosen[tuple(np.array(places[:states]).T)] = True
    return chosen


def _shuffled(found: Visited, rng: np.random.Generator) -> Visited:
    worth = np.zeros_like(found.advantages)
    worth[found.mask] = rng.permutation(found.advantages[found.mask])
    worth -= worth.sum(axis=1, keepdims=True) / found.mask.sum(axis=1, keepdims=True)
    return found._replace(advantages=np.where(found.mask, worth, np.float32(0.0)))


def _base(
    env: PlacementVectorEnv,
    settings: ExpertSettings,
    validate: Callable[[str], Row],
    objective: Callable[[Row], float],
) -> tuple[str, float]:
    names = env.problem.heuristics if settings.base is None else (env.problem.rule(settings.base),)
    return rules.best(names, validate, objective, base=settings.base is None)


def _check(found: Visited, settings: ExpertSettings) -> None:
    """Refuse settings whose data would not find room: every segment has about as many as the first."""
    mib = settings.segments * found.nbytes / MIB
    if mib > settings.most_mib:
        raise ConfigError(
            f"{settings.segments} segments of {len(found.mask)} states need {mib:,.0f} MiB",
            f"at most {settings.most_mib} (most_mib)",
            "fewer states or segments, or more memory",
        )


def _idle(curve: list[Row], objective: Callable[[Row], float], patience: int) -> bool:
    """Say whether the last segments, as many as patience allows, have brought nothing."""
    found = [objective(row) for row in curve]
    return len(found) - 1 - int(np.argmax(found)) >= patience


def _data_file(scratch: Path, segment: int) -> Path:
    return scratch / f"states-{segment:03}.pt"


def _resumed(scratch: Path, ended: Callable[[dict[str, Any]], bool], data: list[Visited]) -> dict[str, Any] | None:
    """Load the checkpoint and, unless the training has ended, the data of its segments; None: start over."""
    state = checkpoint.load(scratch / CHECKPOINT_FILE)
    if state is None or ended(state):
        return state
    for segment in range(1, state["segment"] + 1):
        part = checkpoint.load(_data_file(scratch, segment))
        if part is None:
            data.clear()
            return None
        data.append(Visited(**{name: tensor.numpy() for name, tensor in part.items()}))
    return state


def _log(logger: Logger, row: Row) -> None:
    for name, value in row.items():
        logger.record(f"expert/{name}", value)
    logger.dump(int(row["segment"]))
