"""``python -m pipeline.watch``."""

from pipeline.watch.command import main
from wire.errors import run_cli

run_cli(main)
