"""The words between the registry and the prober: what is probed, and how it went.

Knows neither HTTP nor the registry's rules.
"""

from enum import StrEnum

import msgspec


class ProbeOutcome(StrEnum):
    """How one `GET /health` ended."""

    OK = "ok"
    """status 200"""
    REFUSED = "refused"
    """nobody listens at that port: the process is gone"""
    NO_ANSWER = "no_answer"
    """no way there, or a connection that ended before an answer; the process may live"""
    BAD_STATUS = "bad_status"
    """an answer other than 200"""
    TIMEOUT = "timeout"
    """no answer in time"""


class ProbeTarget(msgspec.Struct, frozen=True):
    """One instance to probe."""

    address: str
    base_url: str
    """as `Instance.base_url`; probes use its scheme, host and port"""
    generation: int
    """of the record: results of an older one are ignored"""
