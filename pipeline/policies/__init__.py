"""Policies as networks: the scorer, its training with Stable-Baselines3, and the data it learns from."""
