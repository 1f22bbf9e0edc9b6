"""What a client must not set: engines dial the hosts that such fields name (protocol f14)."""

from sidecar.wire.openai import BodyError, Fields, split

FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
"""names of fields, of a JSON body and of a form"""
MAX_XARGS_BYTES = 1 << 16


def without_forbidden(fields: Fields) -> Fields:
    """The client's fields without those that only a router may set.

    Raises BodyError if they are hidden in `vllm_xargs`: engines take those for sampling parameters,
    where KV parameters lie too; one of another type is a 500 (seen on 0.32), for which a healthy
    engine would be ejected.
    """
    if "vllm_xargs" in fields and len(memoryview(fields["vllm_xargs"])) > MAX_XARGS_BYTES:
        raise BodyError(f"vllm_xargs has more than {MAX_XARGS_BYTES} bytes")
    try:
        hidden = split(bytes(fields["vllm_xargs"])) if "vllm_xargs" in fields else {}
    except BodyError:  # no object: for the engine to refuse
        hidden = {}
    for name in FORBIDDEN:
        if name in hidden:
            raise hidden_in_xargs(name)
    if not any(name in fields for name in FORBIDDEN):
        return fields
    return {k: v for k, v in fields.items() if k not in FORBIDDEN}


def hidden_in_xargs(name: str) -> BodyError:
    """The refusal of a `vllm_xargs` that has a field which only a router may set."""
    return BodyError(f"vllm_xargs must not have {name}: only the router may set it")
