"""What both sides of a wire agree on: contracts, bundles, graphs, signatures, confidence sequences and errors.

``pipeline`` and ``placement`` may not import each other; what they exchange is defined here, below both, and below
``sched_env``, which is simulation alone.
"""
