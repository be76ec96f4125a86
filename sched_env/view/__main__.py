"""``python -m sched_env.view``."""

from sched_env.view.command import main
from wire.errors import run_cli

run_cli(main)
