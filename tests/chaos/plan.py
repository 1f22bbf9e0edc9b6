"""Which faults happen when: drawn from the seed alone, before anything runs.

Pure. Invariant: by the plan's own times at most `OUT_MAX` engines of a role are out at once, a
process is killed again only when its successor had time to serve, and no request would find the
pool empty for long.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from sidecar.sim.options import Role

PAUSE_S = (1.0, 3.0)
OUT_MAX = 2
"""engines of a role, of three"""
ENGINE_BACK_S = 2.5
"""from an engine's start (or SIGCONT) until it is placeable again: imports, a beat, a probe"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `target` is the number of the engine or worker; `lasts_s` is how long until what
    was killed is started again (or continued); `control` is what an engine's /sim is told."""

    at_s: float
    kind: str
    target: int = 0
    lasts_s: float = 0.0
    control: dict[str, object] = field(default_factory=dict)


DECK = {
    "engine killed": 3,
    "engine stopped": 2,
    "engine ended": 1,
    "engine refuses": 1,
    "engine told to fail": 4,
    "worker killed": 1,
    "control killed": 1,
    "supervisor killed": 1,
    "Envoy killed": 1,
}
"""How often each comes in a deck that is shuffled and played out: a run of 30 s has them all."""
AWAY_S = {
    "engine killed": (1.0, 5.0),
    "engine ended": (1.0, 5.0),
    "engine stopped": (1.0, 6.0),
    "engine refuses": (1.0, 4.0),
}
SIDECAR_BACK_S = {"worker killed": 3.0, "control killed": 5.0, "supervisor killed": 8.0}
"""before another process of the sidecar is killed: seen 1 to 3 s with two loaded cores"""
SUPERVISOR_AWAY_S = (0.2, 2.0)
ENVOY_BACK_S = 7.0


class _Times:
    """Until when each part counts as out, in seconds of the plan."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self.roles = roles
        self.engines = [0.0] * len(roles)
        self.sidecar = 0.0
        self.envoy = 0.0

    def free_engines(self, now: float) -> list[int]:
        """Engines that are in, and of whose role another one may go out."""
        out = [self.roles[i] for i, until in enumerate(self.engines) if until > now]
        return [
            i
            for i, until in enumerate(self.engines)
            if until <= now and out.count(self.roles[i]) < OUT_MAX
        ]


def make_plan(
    seed: int, seconds: float, roles: Sequence[Role], workers: int, kinds: Collection[str] = DECK
) -> tuple[Fault, ...]:
    """All faults of a run; `roles` are those of the engines by number, `kinds` of the deck."""
    return tuple(_faults(Random(f"plan/{seed}"), seconds, _Times(roles), workers, kinds))


def _faults(
    rng: Random, seconds: float, times: _Times, workers: int, kinds: Collection[str]
) -> Iterator[Fault]:
    deck: list[str] = []
    now = rng.uniform(*PAUSE_S)
    while now < seconds:
        if not deck:
            deck = [kind for kind, count in DECK.items() if kind in kinds for _ in range(count)]
            rng.shuffle(deck)
        for i, kind in enumerate(deck):
            fault = _draw(rng, kind, now, times, workers)
            if fault is not None:
                del deck[i]
                yield fault
                break
        now += rng.uniform(*PAUSE_S)  # also when nothing in the deck may happen yet


def _draw(rng: Random, kind: str, now: float, times: _Times, workers: int) -> Fault | None:
    """A fault of this kind now, or None if it may not happen now."""
    if kind in SIDECAR_BACK_S:
        if times.sidecar > now:
            return None
        lasts_s = rng.uniform(*SUPERVISOR_AWAY_S) if kind == "supervisor killed" else 0.0
        times.sidecar = now + lasts_s + SIDECAR_BACK_S[kind]
        target = rng.randrange(workers) if kind == "worker killed" else 0
        return Fault(now, kind, target, lasts_s)
    if kind == "Envoy killed":
        if times.envoy > now:
            return None
        times.envoy = now + ENVOY_BACK_S
        return Fault(now, kind)
    free = times.free_engines(now)
    if not free:
        return None
    target = rng.choice(free)
    if kind == "engine told to fail":
        return Fault(now, kind, target, control=_control(rng, times.roles[target]))
    lasts_s = rng.uniform(*AWAY_S[kind])
    times.engines[target] = now + lasts_s + ENGINE_BACK_S
    control = {"kind": "refuse", "for_s": lasts_s} if kind == "engine refuses" else {}
    return Fault(now, kind, target, lasts_s, control)


LEG_KINDS = ("status", "status", "reset", "slow", "hang", "stall", "cut")
PREFILL_KINDS = ("no_kv", "eos")


def _control(rng: Random, role: Role) -> dict[str, object]:
    """What an engine is told: the next few requests of one leg fail (docs/simulator.md)."""
    leg = rng.choice(("prefill", "prefill", "plain")) if role == "prefill" else "decode"
    kind = rng.choice(LEG_KINDS + PREFILL_KINDS * (leg == "prefill"))
    body: dict[str, object] = {"leg": leg, "kind": kind, "count": rng.randint(1, 8)}
    if kind == "status":
        body["status"] = rng.choice((409, 429, 500, 500, 503))
    elif kind == "reset":
        body["when"] = rng.choice(("before", "after"))
    elif kind == "slow":
        body["delay_s"] = rng.uniform(0.2, 3.0)
    elif kind in ("stall", "cut"):
        body["after_tokens"] = rng.randint(0, 5)
    return body
