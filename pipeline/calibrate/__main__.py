"""``python -m pipeline.calibrate``."""

from pipeline.calibrate.command import main
from wire.errors import run_cli

if __name__ == "__main__":
    run_cli(main)
