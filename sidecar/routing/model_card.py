"""What an instance says of one model that it serves. A value; knows no instance."""

import msgspec


class ModelCard(msgspec.Struct, frozen=True):
    name: str
    parent: str | None = None
    """of a LoRA adapter: the model it belongs to"""
    max_model_len: int | None = None
    """tokens of prompt and answer together; None: unknown"""
    created: int | None = None
    """Unix seconds; engines say the moment of the question, so the first one is kept"""
    said: str = ""
    """All that the engine said of it and that is the same each time it is asked, a JSON object.
    Empty: named by the configuration alone."""
