"""One round of decisions: the state of the moment goes into the kernels, and what they offer is placed.

What the kernels decide: whose turn it is, which cards may take the job (cpu threshold, memory with margins, sets that
can run, reservations, the upper end of the prediction beside one), where reservations are, and every prediction. What
is decided here: priorities and patience (in which order jobs are put in line), tenants' limits, where a job failed
before, and which strategy picks among the cards. A policy may pick among pairs of a waiting job and a card, or to
wait: then the kernels show it several jobs (``choice: pair``), and a round ends where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.cpn.config import CpnSettings
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import Tables
from placement.cpn.topology import Network
from sched_env import heuristics, scenarios
from sched_env.jobs import features
from sched_env.jobs.batch import discipline_of
from sched_env.jobs.live import Held, LiveEnv, Placed
from sched_env.jobs.raw_state import fields_of_job
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.state import OFFERED, Discipline
from sched_env.jobs.tables import Floats, JobTrace, RuntimeTable
from sched_env.jobs.vector import own_discipline
from sched_env.jobs.workload import Workload

EXPLAINED = 4
"""Shapes of waiting jobs for which a round says what keeps them: the first ones."""

WAIT = "wait"
"""Name of the candidate that places nothing."""

Choose = Callable[[LiveEnv, Job, Sequence[str]], int]
"""Picks one of the candidates of the mask, which are named: cards for the offered job, or pairs; for ``policy``."""


class OnCard(NamedTuple):
    """A job on a card."""

    job: Job
    attempt: Attempt
    left: float
    """Epochs still to do."""
    start_s: float
    """When it began to compute, or is expected to."""
    runs: bool


@dataclass(frozen=True)
class Moment:
    """What a round decides with."""

    now: float
    on_cards: Sequence[OnCard]
    waiting: Sequence[Job]
    """In order of submission; those whose back-off is not over, or whose tenant has enough running, left out."""
    up: Mapping[str, bool]
    """``cluster/node`` -> whether it takes jobs; left out: it does not."""
    others_cpu: Mapping[str, float] = field(default_factory=dict)
    """``cluster/node`` -> share of the cores that others keep busy; left out: as described."""
    others_mem_gib: Mapping[str, float] = field(default_factory=dict)
    others_gpu_gib: Mapping[str, float] = field(default_factory=dict)
    """Card -> GPU memory that is not our jobs'."""
    service: Mapping[str, float] = field(default_factory=dict)
    last_card: str | None = None
    avoid: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Job -> ``cluster/node`` where it failed before."""
    dispatch_s: float = 0.0
    startup_s: float = 0.0


class Decision(NamedTuple):
    """A job goes to a card."""

    job: Job
    card: str
    arrives_at: float
    """When its data are there."""
    predicted_end: float


class Round(NamedTuple):
    """What a round decided."""

    decisions: list[Decision]
    held: dict[str, tuple[str, float]]
    """Job -> card of its reservation, and when it was promised to start."""
    ends: dict[str, float]
    """Job -> predicted end, of all on cards."""
    why: dict[str, str]
    """Job -> what keeps it in line, of some of those who wait."""


class Allocator:
    """Decides, round by round.

    Args:
        settings: The controller's.
        tables: Run times.
        choose: Picks with ``strategy: policy``.
        pairs: Returns the scenario's keys under which what picks was trained to pick pairs; None: it picks cards.
    """

    def __init__(
        self,
        settings: CpnSettings,
        tables: Tables,
        choose: Choose | None = None,
        pairs: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        self._settings, self._tables, self._choose, self._pairs = settings, tables, choose, pairs
        self._env: LiveEnv | None = None
        self._pick: Callable[[], NDArray[np.int64]] | None = None
        self._digest = ""
        self._table: RuntimeTable | None = None
        self._trained: Mapping[str, Any] | None = None
        self._scenario = self._load()

    def round(self, network: Network, moment: Moment) -> Round:
        """Decide what can be decided now; nothing outside changes."""
        if not moment.waiting and not moment.on_cards:
            return Round([], {}, {}, {})
        present = [one for one in moment.on_cards if one.attempt.card in network.card_index]
        jobs = [one.job for one in present]
        named = {job.model for job in (*jobs, *moment.waiting)}
        table, caution = self._tables.table(network.table.card_types, tuple(sorted(named)))
        models = table.model_names
        classes = self._classes(moment, table)
        waiting = [job for _, group in classes for job in group]
        jobs += waiting
        trace = _trace(jobs, {model: k for k, model in enumerate(models)}, caution, network, models)
        env = self._environment(network, trace, table)
        discipline = self._discipline(env)
        placed = Placed(
            np.arange(len(present), dtype=np.int32),
            np.array([network.card_index[one.attempt.card] for one in present], np.int32),
            np.array([one.left for one in present], np.float64),
            np.array([one.start_s for one in present], np.float64),
            np.array([one.runs for one in present], np.bool_),
        )
        described = network.table
        env.begin(
            moment.now,
            trace,
            np.array([job.submitted_at for job in jobs]),
            placed,
            discipline=discipline,
            others_gpu_gib=_of(described.cards, moment.others_gpu_gib, np.zeros(len(described.cards))),
            others_cpu=_of(described.nodes, moment.others_cpu, described.node_cpu_used),
            others_mem_gib=_of(described.nodes, moment.others_mem_gib, np.zeros(len(described.nodes))),
            up=np.array([moment.up.get(name, False) for name in described.nodes]),
            service=np.array([moment.service.get(model, 0.0) for model in models]),
            last_card=network.card_index.get(moment.last_card or "", -1),
            dispatch_s=moment.dispatch_s,
            startup_s=moment.startup_s,
        )
        row_of = {job.id: row for row, job in enumerate(jobs)}
        decisions: list[Decision] = []
        reserved = [job for job in waiting if job.state == "reserved" and (job.card or "") in network.card_index]
        early = {job.id for job in reserved}
        for number, (overdue, group) in enumerate(classes):
            # A promise holds whatever the class: the job it was made to is in line from the first.
            joining = [*(reserved if number == 0 else ()), *(job for job in group if job.id not in early)]
            joining.sort(key=lambda job: row_of[job.id])
            # Before they join: a line is ordered by the discipline that holds then.
            env.run_by(Discipline("fifo", "easy", discipline.max_jobs_per_card) if overdue else discipline)
            env.line_up(
                np.array([row_of[job.id] for job in joining], np.int32),
                np.array([job.queued_at for job in joining]),
                np.array([job.failures for job in joining], np.int32),
            )
            if number == 0:
                env.hold(
                    Held(
                        np.array([row_of[job.id] for job in reserved], np.int32),
                        np.array([network.card_index[job.card or ""] for job in reserved], np.int32),
                        np.array([job.promised_at or moment.now for job in reserved]),
                    )
                )
            placed_now, waits = self._place(env, network, moment, jobs, may_wait=not overdue)
            decisions += placed_now
            if waits:  # for the next event, whoever else is in line: what it keeps free is not for a lower class
                break
        held = env.held()
        promises = {
            jobs[row].id: (described.cards[card], float(promise))
            for row, card, promise in zip(held.row, held.card, held.promise_s, strict=True)
            if np.isfinite(promise)
        }
        ends = {jobs[row].id: end for row, end in env.predicted_ends().items()}
        return Round(decisions, promises, ends, self._explain(env, jobs))

    def _classes(self, moment: Moment, table: RuntimeTable) -> list[tuple[bool, list[Job]]]:
        """Group the waiting: first those out of patience, then by priority, which waiting raises up to the highest.

        Of one priority those go first whose deadline is in question.
        """
        groups: dict[tuple[int, int, bool], list[Job]] = {}
        alone_s = dict(zip(table.model_names, table.seconds[:, :, 0, 0].min(axis=1).tolist(), strict=True))
        highest = max((job.priority for job in moment.waiting), default=0)
        for job in moment.waiting:
            waited = moment.now - job.submitted_at
            step = min(job.priority + int(waited / self._settings.priority_ageing_s), highest)
            overdue = waited > self._settings.patience_s
            key = (1, 0, False) if overdue else (0, step, _in_question(job, alone_s[job.model], moment.now))
            groups.setdefault(key, []).append(job)
        return [(key[0] == 1, groups[key]) for key in sorted(groups, reverse=True)]

    def _environment(self, network: Network, trace: JobTrace, table: RuntimeTable) -> LiveEnv:
        trained = self._pairs() if self._policy and self._choose is not None else None
        other = network.digest != self._digest or table is not self._table
        if trained != self._trained:
            self._trained, other = trained, True
            self._scenario = self._load()
        if self._env is None or other:
            self._env = LiveEnv(self._scenario, 1, Workload(trace, network.table, table))
            self._pick, self._digest, self._table = None, network.digest, table
        return self._env

    def _load(self) -> CpnScenario:
        """Return the settings as a scenario; with a policy of pairs, order and jobs shown are those of its training."""
        keys = ("cpu_threshold", "gpu_mem_margin_gib", "mem_margin_gib", "big_job_gib", "max_jobs_per_card")
        own = {name: getattr(self._settings, name) for name in keys}
        scenario = scenarios.load("jobs/cpn", {**own, **(self._trained or {"choice": "card"})})
        if not isinstance(scenario, CpnScenario):
            raise TypeError(f"jobs/cpn is a {type(scenario).__name__}")
        return scenario

    def _discipline(self, env: LiveEnv) -> Discipline:
        if env.rules.pairs > 0:
            return own_discipline(env.scenario)
        return discipline_of("min_completion_time_reserve" if self._policy else self._settings.strategy, env)

    @property
    def _policy(self) -> bool:
        return self._settings.strategy == "policy"

    def _place(
        self, env: LiveEnv, network: Network, moment: Moment, jobs: Sequence[Job], *, may_wait: bool
    ) -> tuple[list[Decision], bool]:
        """Place until nothing fits; the second is whether the policy would rather wait."""
        cards = network.table.cards
        decisions: list[Decision] = []
        while (offered := env.offer()) is not None:
            shown = env.state.shown[0, : env.rules.pairs] if env.rules.pairs > 0 else np.array([offered.row])
            self._elsewhere(env, network, [moment.avoid.get(jobs[row].id) if row >= 0 else None for row in shown])
            if env.rules.pairs > 0:
                env.buffers.mask[0, -1] &= may_wait
            action = self._action(env, jobs[offered.row], _names(env, cards, jobs, shown))
            if env.choice(0, action).place < 0:
                return decisions, True
            (row, card), end = env.take(action)
            delay = float(env.rules.dispatch_s + _transfer_s(env, row, card))
            decisions.append(Decision(jobs[row], cards[card], moment.now + delay, moment.now + end))
        return decisions, False

    @staticmethod
    def _elsewhere(env: LiveEnv, network: Network, avoided: Sequence[frozenset[str] | None]) -> None:
        """Keep jobs from the nodes where they failed, if there are others for them."""
        for slot, bad in enumerate(avoided):
            if bad:
                mask = env.buffers.mask[0, slot * len(env.topology) : (slot + 1) * len(env.topology)]
                elsewhere = mask & ~np.isin(np.array(network.table.nodes)[network.table.card_node], list(bad))
                if elsewhere.any():
                    mask[:] = elsewhere
                    env.buffers.feasible[0] = env.buffers.mask[0].sum()  # what random_feasible draws from

    def _action(self, env: LiveEnv, job: Job, names: Sequence[str]) -> int:
        if self._policy and self._choose is not None:
            return self._choose(env, job, names)
        if self._pick is None:
            strategy = "min_completion_time" if self._policy else self._settings.strategy
            self._pick = heuristics.batch(strategy, env)
        if self._settings.load_balance > 0.0:
            return self._balanced(env)
        return int(self._pick()[0])

    def _balanced(self, env: LiveEnv) -> int:
        """Lengthen what is predicted on nodes that are busier than the mean, as upstream's second generation does."""
        row = int(env.state.tally[0, OFFERED])
        card, _ = fields_of_job(env, 0, row)
        load = (card["node_cpu"] + 1.0 - card["node_mem_free"] / card["node_mem_total"]) / 2.0
        load = (load + 1.0 - card["gpu_mem_free"] / card["gpu_mem_total"]) / 2.0
        excess = np.maximum(load / max(float(load.mean()), 1e-9) - 1.0, 0.0)
        times = np.where(
            env.buffers.mask[0], card["completion_s"] * (1.0 + self._settings.load_balance * excess), np.inf
        )
        return int(np.argmin(times))

    def _explain(self, env: LiveEnv, jobs: Sequence[Job]) -> dict[str, str]:
        why: dict[str, str] = {}
        for row in np.sort(env.open_rows())[:EXPLAINED]:
            counts = features.ruled_out(*fields_of_job(env, 0, int(row)))
            total = len(env.topology)
            said = [f"{count} of {total} cards {what}" for what, count in counts.items() if count]
            why[jobs[row].id] = ", ".join(said) or "no card may take it"
        return why


def _trace(
    jobs: Sequence[Job], index: Mapping[str, int], caution: Floats, network: Network, models: tuple[str, ...]
) -> JobTrace:
    model = np.array([index[job.model] for job in jobs], np.int32)
    best = np.array([job.deadline_s if job.deadline_s is not None else np.nan for job in jobs])
    rows = len(jobs)
    return JobTrace(
        arrival_s=np.zeros(rows),
        model=model,
        epochs=np.array([job.epochs for job in jobs]),
        gpu_mem=np.array([job.gpu_mem_gib for job in jobs]),
        data_gb=np.array([job.data_gb for job in jobs]),
        mem=np.array([job.mem_gib for job in jobs]),
        cpu=np.array([job.cpu_cores for job in jobs]),
        origin=np.array([network.datacenter_index.get(job.origin, 0) for job in jobs], np.int32),
        deadline_s=np.where(np.isnan(best), NO_DEADLINE_S, best) if not np.isnan(best).all() else np.empty(0),
        caution=caution[model],
        model_names=models,
    )


def _in_question(job: Job, alone_s: float, now: float) -> bool:
    """Whether a job, alone on its best card, still meets its deadline, but not after waiting once as long."""
    if job.deadline_s is None:
        return False
    left_s, run_s = job.submitted_at + job.deadline_s - now, alone_s * job.epochs
    return run_s <= left_s < 2.0 * run_s


NO_DEADLINE_S = 365 * 86_400.0
"""Of a job without a deadline, where others in the queue have one."""


class Pairs(Sequence[str]):
    """Names of pairs, slot by slot, and last of all to wait; made when asked for: there may be 64,000, one is taken."""

    def __init__(self, jobs: Sequence[str], cards: Sequence[str]) -> None:
        self._jobs, self._cards = jobs, cards

    def __len__(self) -> int:
        return len(self._jobs) * len(self._cards) + 1

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        slot, card = divmod(range(len(self))[at], len(self._cards))
        return WAIT if slot == len(self._jobs) else f"{self._jobs[slot]} on {self._cards[card]}"


def _names(env: LiveEnv, cards: Sequence[str], jobs: Sequence[Job], shown: NDArray[np.integer]) -> Sequence[str]:
    """Name the candidates."""
    if env.rules.pairs == 0:
        return cards
    return Pairs([jobs[row].id if row >= 0 else "-" for row in shown], cards)


def _transfer_s(env: LiveEnv, row: int, card: int) -> float:
    origin = int(env.trace.origin[row])
    return float(env.trace.data_gb[row] * env.cards.seconds_per_gb[origin, env.cards.node[card]])


def _of(names: Sequence[str], known: Mapping[str, float], default: Floats) -> Floats:
    if not known:
        return np.array(default, np.float64)
    return np.array([known.get(name, default[at]) for at, name in enumerate(names)], np.float64)
