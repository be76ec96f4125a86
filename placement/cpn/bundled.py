"""Run times from the ``runtime`` model of the live ``jobs`` bundle; while there is none, from who was there before.

A promotion changes who answers (``version``), and what was remembered is asked anew (``runtimes.Tables``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from placement.cpn.runtimes import Answer, Asked, RunTimes
from sched_env.jobs.catalogue import Demand
from sched_env.jobs.finished import ErrorTrack
from sched_env.jobs.predictor import RuntimePredictor
from wire.errors import LoadmasterError

if TYPE_CHECKING:
    from placement.policy import Policy

log = logging.getLogger(__name__)

MB_PER_GIB = 1024.0


class Bundled:
    """Asks the live bundle.

    Args:
        live: Returns the live ``jobs`` policy.
        otherwise: Answers while no bundle with a runtime model is live.
        fingerprints: Type of card -> benchmark -> seconds a step, configured; a card that the model has never seen
            is predicted by them.
    """

    def __init__(
        self,
        live: Callable[[], Policy | None],
        otherwise: RunTimes,
        fingerprints: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._live, self._otherwise, self._fingerprints = live, otherwise, dict(fingerprints or {})
        self._predictor: RuntimePredictor | None = None
        self._track = ErrorTrack({})
        self._digest: str | None = None

    @property
    def version(self) -> str:
        """Digest of the bundle that answers; looks whether there is another."""
        policy = self._live()
        digest = policy.digest if policy is not None and "runtime" in policy.models else None
        if digest != self._digest:
            self._predictor = self._open(policy) if policy is not None and digest is not None else None
            self._digest = digest
            self._track = ErrorTrack(self._predictor.measured if self._predictor is not None else {})
        return digest if digest is not None and self._predictor is not None else self._otherwise.version

    def _open(self, policy: Policy) -> RuntimePredictor | None:
        try:
            predictor = RuntimePredictor.of(policy.models["runtime"])
            for card_type, seconds in self._fingerprints.items():
                predictor.set_card(card_type, dict(seconds))
        except LoadmasterError as error:
            # The policy beside it is good; better known run times than none.
            log.warning("the runtime model of %s is not used: %s", policy.digest, error)
            return None
        log.info("run times from the bundle %s", policy.digest)
        return predictor

    @property
    def _answers(self) -> RunTimes | RuntimePredictor:
        return self._predictor or self._otherwise

    def predict(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        """Answer for each set; those that are new go through the graph in one batch."""
        return self._answers.predict(asked)

    def must_run_alone(self, model: str) -> bool:
        """Whether nothing is known of a model."""
        return self._answers.must_run_alone(model)

    def learn(self, model: str, alone_s: Mapping[str, float]) -> None:
        """Take over what a model took alone: from now on it may have company."""
        if self._predictor is None:
            self._otherwise.learn(model, alone_s)
            return
        for card_type, seconds in alone_s.items():
            self._predictor.learn(card_type, model, Demand(seconds))

    def observe(self, model: str, card_type: str, seconds: float) -> None:
        """Hold the prediction to what a run alone took."""
        if self._predictor is not None:
            self._track.observe(self._predictor.predict([(card_type, (model,))])[0], 0, seconds)

    def errors(self) -> dict[str, float]:
        """Return the errors of the last runs alone; ``drift`` is their median over what the model was shipped with."""
        return self._track.figures()

    def gpu_memory_mb(self) -> dict[str, float]:
        """Return the GPU memory of the models that the bundle knows: the most measured on any card."""
        if self._predictor is None:
            return {}
        found = {
            model: max((one.mem_gib or 0.0 for one in cards.values()), default=0.0)
            for model, cards in self._predictor.catalogue.demands.items()
        }
        return {model: gib * MB_PER_GIB for model, gib in found.items() if gib > 0.0}
