r"""How far predicted run times are off: grouped 5-fold, an unseen card, an unseen model; the forest beside XGBoost.

    python benchmarks/runtime_model.py --profiles ../shared/data/cpn-gpu-profiles/colocation_profiles.csv \
        --out docs/results

Everything is learned from the training sets alone, facts of the catalogue and margins of the intervals included;
nothing goes in that is known only while the held-out jobs run. Last line: a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime_model import facts, profiles, unseen
from pipeline.runtime_model.model import FOLDS, cross_validated, figures, fit, offset
from sched_env.jobs.catalogue import Demand
from sched_env.jobs.predictor import RuntimePredictor, rows

Floats = NDArray[np.float64]


def report(predicted: Floats, measured: profiles.Profiles) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures(predicted, measured).items()}


def point(predicted: Floats, measured: profiles.Profiles) -> dict[str, float]:
    """Figures of a model without intervals."""
    found = report(np.stack([predicted] * 3, axis=1), measured)
    return {name: value for name, value in found.items() if "cover" not in name and "width" not in name}


def by_card(predicted: Floats, measured: profiles.Profiles) -> dict[str, dict[str, float]]:
    cards = np.array([card for card, models in measured.sets for _ in models])
    of = np.array([card for card, _ in measured.sets])
    return {card: report(predicted[cards == card], measured.only(of == card)) for card in measured.cards()}


def others(kind: str, measured: profiles.Profiles, seed: int) -> Floats:
    """Predict by folds with another learner."""
    fold, of = measured.folds(FOLDS, seed), measured.of_set()
    logs, predicted = measured.logs(), np.empty(len(of))
    for number in range(FOLDS):
        train = fold != number
        known = facts.catalogue(measured.only(train))
        asked: NDArray[Any] = rows(known, measured.asked())
        at = train[of]
        if kind == "plain forest":
            # What the issue calls plain: names of card, model and co-runners (sorted), log time, mean of the leaves.
            asked, base = _names(measured), np.zeros(len(of))
            learner: Any = _forest()
        else:
            base = offset(asked)
            learner = _xgboost(kind)
        learner.fit(asked[at], (logs - base)[at])
        predicted[~at] = learner.predict(asked[~at]) + base[~at]
    return predicted


def _names(measured: profiles.Profiles) -> Floats:
    cards, models = measured.cards(), measured.models()
    made = []
    for card, names in measured.sets:
        for own, name in enumerate(names):
            rest = names[:own] + names[own + 1 :]
            beside = [rest.count(one) for one in models]
            flops = [*sorted((measured.flops[other] for other in rest), reverse=True), 0.0, 0.0]
            who = [*(card == one for one in cards), *(name == one for one in models)]
            made.append([*who, *beside, measured.flops[name], *flops[:2], len(names)])
    return np.array(made, np.float64)


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(40, max_features=0.5, random_state=0)


def _xgboost(kind: str) -> Any:
    import xgboost

    objective = "reg:squarederror" if kind.endswith("squares") else "reg:absoluteerror"
    return xgboost.XGBRegressor(
        n_estimators=500,
        learning_rate=0.05,
        max_depth=6,
        subsample=0.8,
        colsample_bytree=0.6,
        objective=objective,
        n_jobs=1,
        random_state=0,
    )


def _predictor(train: profiles.Profiles) -> RuntimePredictor:
    """Make what a controller asks, with the margins for what it has not seen; the forest answers in place of ONNX."""
    fitted = fit(train)
    return RuntimePredictor(
        lambda asked: np.exp(fitted.predict(asked)).astype(np.float32), fitted.catalogue, unseen.margins(train)
    )


def _asked(predictor: RuntimePredictor, test: profiles.Profiles) -> Floats:
    answers = predictor.predict(test.asked())
    times: Floats = np.concatenate([np.stack([one.seconds, one.lower_s, one.upper_s], axis=1) for one in answers])
    return np.log(times)


def unseen_cards(measured: profiles.Profiles) -> dict[str, dict[str, float]]:
    """Leave a type of card out; of it, only the three benchmark times are known."""
    found = {}
    for card in measured.cards():
        train, test, fingerprint = unseen.without_card(measured, card)
        predictor = _predictor(train)
        predictor.set_card(card, fingerprint)
        found[card] = report(_asked(predictor, test), test)
        print(card, found[card], flush=True)
    return found


def unseen_models(measured: profiles.Profiles) -> dict[str, dict[str, float]]:
    """Leave a model out; of it, only the time alone on each card is known (the shortest seen, where it never was)."""
    found = {}
    for model in measured.models():
        train, test, alone = unseen.without_model(measured, model)
        predictor = _predictor(train)
        for card, seconds in alone.items():
            predictor.learn(card, model, Demand(seconds))
        own = np.array([name == model for _, models in test.sets for name in models])
        predicted, truth = _asked(predictor, test), test.logs()
        error = 100.0 * np.abs(np.expm1(predicted[:, 0] - truth))
        inside = (predicted[:, 1] <= truth) & (truth <= predicted[:, 2])
        found[model] = {
            "mape": round(float(error[own].mean()), 2),
            "median_ape": round(float(np.median(error[own])), 2),
            "coverage90": round(100.0 * float(inside[own].mean()), 2),
            "upper_over_expected": round(float(np.exp(np.median((predicted[:, 2] - predicted[:, 0])[own]))), 2),
            "mape_of_co_runners": round(float(error[~own].mean()), 2),
            "coverage90_of_co_runners": round(100.0 * float(inside[~own].mean()), 2),
        }
        print(model, found[model], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="ways to deal the sets to folds")
    parser.add_argument("--only-unseen", action="store_true", help="add these parts to the results that are there")
    options = parser.parse_args()
    measured, began = profiles.read([options.profiles]), time.process_time()
    result: dict[str, Any] = {}

    def keep(**parts: Any) -> None:
        """Write what there is so far: the whole takes a quarter of an hour."""
        result.update(parts, cpu_s=round(time.process_time() - began, 1), load_average=os.getloadavg())
        print(parts, flush=True)
        if options.out:
            (options.out / "runtime_model.json").write_text(json.dumps(result, indent=1) + "\n")

    if options.only_unseen:
        if options.out:
            result.update(json.loads((options.out / "runtime_model.json").read_text()))
        keep(unseen_card=unseen_cards(measured))
        keep(unseen_model=unseen_models(measured))
        print(json.dumps(result))
        return
    deals = []
    for seed in range(options.seeds):
        predicted = cross_validated(measured, seed=seed)
        deals.append(report(predicted, measured))
        mean = {name: round(float(np.mean([deal[name] for deal in deals])), 2) for name in deals[0]}
        keep(grouped=mean, grouped_by_deal=deals)
        if not seed:
            keep(by_card=by_card(predicted, measured))
            keep(unseen_card=unseen_cards(measured))
            learners = {}
            for kind in ("plain forest", "xgboost, squares", "xgboost, absolute"):
                learners[kind] = point(others(kind, measured, 0), measured)
                keep(others=learners)
    keep(unseen_model=unseen_models(measured))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
