"""The live placement service: policy store, decisions, HTTP API and cluster adapters."""
