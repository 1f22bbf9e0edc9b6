"""pd-sidecar: a router for prefill/decode disaggregated vLLM, behind Envoy."""

__version__ = "0.1.0"
