"""``python -m pipeline.forecast``."""

from pipeline.forecast.command import main
from wire.errors import run_cli

run_cli(main)
