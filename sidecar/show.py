"""What a person sees in the terminal: the banners of `up` and `serve`, the table of `status`."""

import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.app.up import Up, fetch_json, local_url

MODEL = "MODEL"

_PLACES = """
pd-sidecar {state}
  OpenAI API      {url}/v1
  engines         {engines}
  metrics         {observe}/metrics and /envoy/metrics
  status          {program} status --admin {admin}
  run directory   {run_dir}
"""

_TRY = """
Try it:
  curl -N {url}/v1/chat/completions \\
    -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true,
         "messages": [{{"role": "user", "content": "Hello"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  for chunk in client.chat.completions.create(
      model="{model}", stream=True,
      messages=[{{"role": "user", "content": "Hello"}}],
  ):
      print(chunk.choices[0].delta.content or "", end="")
"""

_END = """
Ctrl-C drains and stops everything; a second one ends at once.
"""


def url_of(up: Up) -> str:
    """Where a client on this machine reaches the edge."""
    return local_url(up.config.edge.listen)


def banner(up: Up) -> str:
    """Shown by `up` once everything serves, engines or none."""
    found = fetch_json(up.config.admin.listen, "/status") or {}
    ready = _ready(found)
    models = sorted({name for one in ready for name in one["models"]})
    why_not = found.get("not_ready", "")
    places = _places(up, ready, f"is up, not yet ready: {why_not}" if why_not else "is ready")
    return places + _TRY.format(url=url_of(up), model=models[0] if models else MODEL) + _END


def serve_banner(up: Up) -> str:
    """Shown by `serve`: the sidecar's part works, Envoy may or may not be there."""
    found = fetch_json(up.config.admin.listen, "/status") or {}
    state = "serves; Envoy is yours to start (pd-sidecar bootstrap)"
    return _places(up, _ready(found), "is ready" if found.get("not_ready") == "" else state) + _END


def _ready(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found.get("instances", ()) if one["state"] == "ready"]


def _places(up: Up, ready: list[dict[str, Any]], state: str) -> str:
    config = up.config
    counts = {r: sum(one["role"] == r for one in ready) for r in ("prefill", "decode")}
    known = ", ".join(f"{n} {role}" for role, n in counts.items())
    register = f"register at {config.registration.listen}"
    named = "NIXL, of `instances` in the configuration"
    engines = named if config.connector == "nixl" else register
    return _PLACES.format(
        state=state,
        url=url_of(up),
        engines=f"{engines} ({f'{known} ready' if ready else 'none ready yet'})",
        observe=local_url(config.observe.listen),
        program=program(),
        admin=config.admin.listen,
        run_dir=up.run_dir.path,
    )


def program() -> str:
    """What to type to start this program: its name, or its path where the name is not found."""
    name = Path(sys.argv[0]).name
    return "pd-sidecar" if shutil.which(name) or name != "pd-sidecar" else sys.argv[0]


def status_table(found: dict[str, Any]) -> None:
    """One row a slot; an instance's own columns stand in its first."""
    console = Console(markup=False, highlight=False)
    ready = "ready" if not found["not_ready"] else f"not ready: {found['not_ready']}"
    envoys = ", ".join(one["node_id"] for one in found["envoys"]) or "none"
    console.print(f"pd-sidecar {found['version']}: {ready}")
    console.print(f"workers {found['workers']}   Envoy {envoys}   in flight {found['in_flight']}")
    console.print(slot_table(found["instances"]))
    outcomes = ", ".join(f"{k} {v}" for k, v in sorted(found["outcomes"].items())) or "none yet"
    console.print(f"ended requests: {outcomes}")


def slot_table(instances: list[dict[str, Any]]) -> Table:
    # Fits 80 columns; a longer address or state folds, numbers never do. Which instance has which
    # model is shown where they differ.
    shows_models = len({tuple(sorted(one["models"])) for one in instances}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("name", "role", "address", "state", "mode", "vLLM", "beat"):
        folds = column in ("address", "state")
        table.add_column(column, no_wrap=not folds, overflow="fold")
    if shows_models:
        table.add_column("models", overflow="fold")
    for column in ("rank", "in flight", "placed"):
        table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    for one in instances:
        age = one["heartbeat_age_s"]
        state = one["state"] if one["is_placeable"] or one["state"] != "ready" else "no ACK"
        mode = "NIXL" if one["connector"] == "nixl" else one["transfer_mode"]
        head = [one["name"], one["role"], one["address"], state, mode]
        head += [one["version"] or "?", "static" if age is None else f"{age:.1f} s"]
        head += [", ".join(one["models"]) or "?"] if shows_models else []
        for i, rank in enumerate(one["ranks"]):
            numbers = [str(rank[key]) for key in ("dp_rank", "in_flight", "placed")]
            # Text, because an IPv6 address in brackets would be read as markup.
            cells = [*(head if i == 0 else [""] * len(head)), *numbers]
            table.add_row(*(Text(cell) for cell in cells))
    return table
