"""Watching what is live: service level against the gate's promise, drift of features and actions, fallbacks."""
