"""``python -m pipeline.registry``."""

from pipeline.registry.command import main
from wire.errors import run_cli

run_cli(main)
