"""The nightly pipeline: one verb a stage, from raw metrics to a signed policy bundle."""

from wire import early_help

early_help.answer()
