"""The nightly pipeline: one verb a stage, from raw metrics to a signed policy bundle."""
