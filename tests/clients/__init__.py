"""Unmodified clients against the whole of it: a real Envoy, the sidecar and simulated engines."""
