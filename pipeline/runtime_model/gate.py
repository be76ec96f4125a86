"""Whether a new runtime model may replace the one that is live: not if it is worse on what neither has seen.

What the live model has not seen is what was measured after its last measurement; the new one is judged there by its
predictions for sets held out. Where too little is new, the errors that both had on held-out sets are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.champions import bundle_of
from pipeline.model_folder import SPEC_FILE
from pipeline.runtime_model.model import held_out
from pipeline.runtime_model.profiles import Profiles
from pipeline.runtime_model.store import NAME
from sched_env.jobs.predictor import RuntimePredictor
from wire import bundle, models
from wire.contracts.bundle import model_file, model_golden_file

FEWEST_NEW_JOBS = 50
"""Jobs measured since, below which the two are compared by what they had on held-out sets."""
TOLERATED = 1.02
"""Errors of two fits on the same data differ by about a hundredth with the seed; twice that is no difference."""


class Verdict(NamedTuple):
    """What is shipped."""

    why: str
    keep: dict[str, bytes] | None
    """Files of the live model, if it stays."""


def judge(profiles: Profiles, measured: dict[str, float], champion: Path, *, seed: int = 0) -> Verdict:
    """Compare a new model, by its held-out errors, with the one in the champion's bundle."""
    folder = bundle_of(champion)
    if folder is None:
        return Verdict("nothing is live", None)
    checked = bundle.check(bundle.read(folder))
    live = next((one for one in checked.models if one.name == NAME), None)
    if live is None:
        return Verdict("the live bundle has no runtime model", None)
    predictor = RuntimePredictor.of(models.open_all([live])[NAME])
    until = predictor.measured.get("fitted_until_s", -np.inf)
    known = np.array([not any(map(predictor.must_run_alone, names)) for _, names in profiles.sets])
    new = known & (profiles.time_s > until)
    jobs = new[profiles.of_set()]
    if jobs.sum() >= FEWEST_NEW_JOBS:
        raw, _ = held_out(profiles, seed=seed)
        truth = profiles.logs()[jobs]
        answers = predictor.predict(profiles.only(new).asked())
        before = np.log(np.concatenate([one.seconds for one in answers]))
        theirs, ours = (100.0 * float(np.abs(np.expm1(p - truth)).mean()) for p in (before, raw[jobs, 0]))
        where = f"on {int(jobs.sum())} jobs measured since"
    else:
        theirs, ours = predictor.measured.get("mape", np.inf), measured["mape"]
        where = "on held-out sets"
    said = f"error {ours:.2f} % against {theirs:.2f} % of the live model {where}"
    if ours <= theirs * TOLERATED:
        return Verdict(said, None)
    files = {model_file(NAME): live.graph, model_golden_file(NAME): (folder / model_golden_file(NAME)).read_bytes()}
    return Verdict(f"{said}: the live one stays", files | {SPEC_FILE: msgspec.json.encode(live.spec, order="sorted")})
