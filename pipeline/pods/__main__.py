"""``python -m pipeline.pods``."""

from pipeline.pods.command import main
from wire.errors import run_cli

if __name__ == "__main__":
    run_cli(main)
