"""``python -m pipeline.lifetime_model``."""

from pipeline.lifetime_model.command import main
from wire.errors import run_cli

run_cli(main)
