"""The live placement service: policy store, decisions, HTTP API and cluster adapters."""

from wire import early_help

early_help.answer()
