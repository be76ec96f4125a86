"""Check the service's settings without starting it: environment, file, clusters, fallbacks.

    loadmaster check-config

Prints what would be used, each setting that is not the default marked; a mistake is one line, and exit code 2.
"""

from __future__ import annotations

import argparse
import sys

from placement.kube import config as kube_config
from placement.service import check_fallbacks
from placement.settings import Settings, load
from wire.command import Verb
from wire.errors import run_cli


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line: there is nothing to say."""


def run(_: argparse.Namespace) -> int:
    """Load everything that the service would, and show it."""
    settings, plain = load(), Settings()
    check_fallbacks(settings)
    clusters = kube_config.load(settings.clusters_file)
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        mark = "" if value == getattr(plain, name) else "  (set)"
        sys.stdout.write(f"{name}: {value}{mark}\n")
    sys.stdout.write(f"clusters: {', '.join(clusters.clusters) or 'none'}\n")
    return 0


main = Verb("loadmaster check-config", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
