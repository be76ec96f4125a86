"""``python -m sched_env.view``."""

from sched_env.view.command import main
from wire.errors import run_cli

if __name__ == "__main__":
    run_cli(main)
