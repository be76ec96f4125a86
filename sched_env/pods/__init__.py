"""Pod migration: every five minutes, pods of stressed nodes are offered and may move (docs/pods.md)."""
