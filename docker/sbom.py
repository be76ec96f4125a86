"""Writes what an image is made of: every Python distribution and Debian package, as CycloneDX 1.6 JSON.

    python sbom.py NAME /usr/share/sbom/NAME.cdx.json

Run at the end of a build by the image's own interpreter; standard library alone, so it adds nothing to what it lists.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def distributions() -> list[dict[str, object]]:
    """List the Python distributions that this interpreter can import."""
    found = {}
    for one in metadata.distributions():
        name, version = one.metadata["Name"].lower().replace("_", "-"), one.version
        part: dict[str, object] = {"type": "library", "name": name, "version": version}
        part["purl"] = part["bom-ref"] = f"pkg:pypi/{name}@{version}"
        if licence := one.metadata.get("License-Expression"):
            part["licenses"] = [{"expression": licence}]
        found[name] = part
    return [found[name] for name in sorted(found)]


def packages() -> list[dict[str, object]]:
    """List the Debian packages; none on a base that has no dpkg."""
    query = ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\n"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    parts = []
    for line in sorted(listing.splitlines()):
        name, version, architecture = line.split("\t")
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
        parts.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return parts


def main() -> None:
    """Write the list."""
    name, target = sys.argv[1], Path(sys.argv[2])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name}},
        "components": [*distributions(), *packages()],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
