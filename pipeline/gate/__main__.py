"""``python -m pipeline.gate``."""

from pipeline.gate.command import main
from wire.errors import run_cli

run_cli(main)
