"""One line of docs/requests.md: a feature, how it is served, and the test that proves it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Proof:
    feature: str
    """what a client sends or expects, in words"""
    served: str
    """how: through prefill and decode, whole by one instance, refused with what"""
    test: str
    """`path::name`, without parameters; `document` checks that it exists"""
