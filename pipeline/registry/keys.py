"""The command line of the signing keys; every change travels with the records, so that a restore can check it.

python -m pipeline.registry.keys list
python -m pipeline.registry.keys trust KEY [KEY ...]
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
from wire.command import Verb
from wire.errors import run_cli


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every key and what it is good for")
    one = commands.add_parser("trust", help="name the keys that are trusted, when their list was lost")
    one.add_argument("key", nargs="+", help="id of a key in the folder, or its beginning; compare it with a copy")
    commands.add_parser("rotate", help="sign with a new key; the one before stays valid")
    one = commands.add_parser("retire", help="stop accepting an old key for new pushes")
    one.add_argument("key")
    one = commands.add_parser("revoke", help="withdraw a key that may be in other hands")
    one.add_argument("key")
    one.add_argument("--reason", required=True)


def run(options: argparse.Namespace) -> int:
    """Change the keys, publish the change, and list what there is."""
    if options.command == "trust":
        signing.trust(options.key)
    elif options.command == "rotate":
        signing.rotate()
    elif options.command == "retire":
        signing.retire(options.key, last_record=Chain.open().head())
    elif options.command == "revoke":
        signing.revoke(options.key, options.reason, last_record=Chain.open().head())
    if options.command != "list":
        Chain.open().publish_keys(f"keys: {options.command}")
    signing.private_key()
    current, listed = signing.current_key_id(), signatures.revocations(signing.revoked_file())
    for key, path in sorted(signing.public_keys().items()):
        use = "revoked" if key in listed else path.parent.name + (", signs now" if key == current else "")
        sys.stdout.write(f"{key}  {use}\n")
    return 0


main = Verb("python -m pipeline.registry.keys", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
