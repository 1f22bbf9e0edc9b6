"""NIXL's `kv_transfer_params` (protocol g).

Pure values. Knows no body and no other connector. Decode's parameters are prefill's answer and
nothing else, so there are none to make here.
"""

from sidecar.wire.openai import Fields

PREFILL_PARAMS: dict[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Of every prefill leg: decode is not known to prefill, and asks it by what it answered."""


def allow_one_token(leg: Fields) -> None:
    """Change a prefill body so that one token may end it in whatever way: KV is handed over when it
    stopped, too. More that is asked for at least would be a 400."""
    leg.pop("min_tokens", None)


def key_seen(params: Fields) -> str | None:
    """A key by which prefill's answer is NIXL's, if no other connector's is there; else None."""
    return "remote_port" if "remote_port" in params else None
