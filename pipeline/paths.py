"""Every path below ``data/`` and beside the code of a run, in one place; all relative to the run's own clone."""

from __future__ import annotations

from pathlib import Path

PARAMS = Path("params.yaml")
CHAMPIONS = Path("champions")
PROFILES = Path("profiles")

DATA = Path("data")
RAW = DATA / "raw"
WINDOWS = DATA / "windows"
VALIDATION = DATA / "validation"
CALIBRATION = DATA / "calibration"
MODELS = DATA / "models"
"""Further models of bundles: ``<problem>/<model name>``."""
POLICIES = DATA / "policies"
BUNDLES = DATA / "bundles"
EVALUATION = DATA / "evaluation"
GATE = DATA / "gate"
REPORT_JSON, REPORT_MARKDOWN, REPORT_HTML = "report.json", "report.md", "report.html"
"""Of the gate, below ``<problem>``."""
SHADOW = DATA / "shadow"
SHADOW_JSON, SHADOW_MARKDOWN = "shadow.json", "shadow.md"
"""What the candidate would have done with live traffic, below ``<problem>``."""
METRICS = DATA / "metrics"


def metrics_of(stage: str, *parts: str) -> Path:
    """Return the file of a stage's flat numbers, which ``dvc metrics`` shows: ``data/metrics/train-vm-….json``."""
    return METRICS / ("-".join((stage, *parts)) + ".json")
