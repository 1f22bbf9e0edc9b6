"""Simulated engines, with MoRI-IO or NIXL: vLLM's HTTP face and KV hand-over, no GPU, no model.

Imports nothing from the rest of the project: a simulator built on the project's own codec
would share its faults. Each instance is one process, `python -m sidecar.sim engine ...`.
"""
