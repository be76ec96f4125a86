"""``python -m pipeline.validate``."""

from pipeline.validate.command import main
from wire.errors import run_cli

run_cli(main)
