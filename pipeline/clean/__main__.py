"""``python -m pipeline.clean``."""

from pipeline.clean.command import main
from wire.errors import run_cli

run_cli(main)
