"""The registry: run branches, hash-chained and signed promotion records, derived GTO tags, signed bundles.

git holds what is small and must be ordered (branch ``promotions``: ``records/<sequence>.json`` and ``.sig``,
``bundles/<digest>.dvc``, ``keys/``; branches ``runs/<run id>``: params, lock, metrics, gate reports); DVC holds bytes.
Every write is one atomic push that the remote accepts only on top of what the writer has read.
"""
