"""Serverless instances on priced nodes: contention, cold starts, billing; the kernels and their Gymnasium views."""
