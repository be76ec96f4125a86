"""``python -m pipeline.calibrate``."""

from pipeline.calibrate.command import main
from wire.errors import run_cli

run_cli(main)
