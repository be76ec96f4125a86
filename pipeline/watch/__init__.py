"""Watching what is live: service level and cost against the gate's promise, drift of features and actions, fallbacks."""
