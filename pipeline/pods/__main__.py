"""``python -m pipeline.pods``."""

from pipeline.pods.command import main
from wire.errors import run_cli

run_cli(main)
