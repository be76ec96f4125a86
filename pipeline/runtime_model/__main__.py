"""``python -m pipeline.runtime_model``."""

from pipeline.runtime_model.command import main
from wire.errors import run_cli

run_cli(main)
