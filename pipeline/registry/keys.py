"""The command line of the signing keys; every change travels with the records, so that a restore can check it.

python -m pipeline.registry.keys list
python -m pipeline.registry.keys rotate
python -m pipeline.registry.keys retire KEY
python -m pipeline.registry.keys revoke KEY --reason TEXT
"""

from __future__ import annotations

import argparse
import sys

from pipeline.registry import signing
from pipeline.registry.chain import Chain
from wire import signatures
from wire.errors import run_cli


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.registry.keys", description="Keys that sign bundles and records"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every key and what it is good for")
    commands.add_parser("rotate", help="sign with a new key; the one before stays valid")
    one = commands.add_parser("retire", help="stop accepting an old key for new pushes")
    one.add_argument("key")
    one = commands.add_parser("revoke", help="withdraw a key that may be in other hands")
    one.add_argument("key")
    one.add_argument("--reason", required=True)
    arguments = parser.parse_args()
    if arguments.command == "rotate":
        signing.rotate()
    elif arguments.command == "retire":
        signing.retire(arguments.key)
    elif arguments.command == "revoke":
        signing.revoke(arguments.key, arguments.reason, last_record=Chain.open().head())
    if arguments.command != "list":
        Chain.open().publish_keys(f"keys: {arguments.command}")
    signing.private_key()
    current, listed = signing.current_key_id(), signatures.revocations(signing.revoked_file())
    for key, path in sorted(signing.public_keys().items()):
        use = "revoked" if key in listed else path.parent.name + (", signs now" if key == current else "")
        sys.stdout.write(f"{key}  {use}\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
