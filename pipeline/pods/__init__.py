"""Stages as pods: each works in a clone of its own, and hands on data by digest and a fragment of the lock."""
