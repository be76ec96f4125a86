"""What is written below the tables of ``quality.py``."""

from __future__ import annotations

NOTES: dict[str, list[str]] = {}
