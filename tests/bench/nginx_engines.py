"""Mock engines that answer at once and whole: one nginx for prefill, one for decode.

nginx, so that the engines cost little beside what is measured. Each answers only when it has read
the request's body, as an engine does. A request is counted by nginx itself (`stub_status`).
"""

import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.bench.mock_answers import MODELS, VERSION, decode_answer, prefill_answer
from tests.bench.program import Program
from tests.e2e.stack import until
from tests.ports import free_port

INSTANCES = 2
"""of each role: one nginx that listens on so many ports"""

# `return` answers before it has read a body, so longer ones are read by `mirror` first: its
# subrequest is answered from nowhere, and the content comes from the named location.
CONFIGURATION = """\
daemon off; master_process off; worker_processes 1;
error_log {folder}/{name}-error.log crit; pid {folder}/{name}.pid;
events {{ worker_connections 60000; multi_accept on; }}
http {{
  access_log off; default_type application/json; log_not_found off;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-fastcgi; uwsgi_temp_path {folder}/{name}-uwsgi;
  scgi_temp_path {folder}/{name}-scgi;
  client_max_body_size 64m; client_body_buffer_size 8m;
  client_header_buffer_size 8k; large_client_header_buffers 8 64k;
  keepalive_timeout 3600s; keepalive_requests 1000000000; keepalive_time 24h;
  map $content_length $is_short {{ default ""; ~^[0-9][0-9]?[0-9]?$ 1; ~^1[0-9][0-9][0-9]$ 1; }}
  {servers}
  server {{ listen 127.0.0.1:{status_port}; location / {{ stub_status; }} }}
}}
"""
SERVER = """\
  server {{
    listen {address} backlog=16384;
    location = /health {{ return 200 ""; }}
    location = /version {{ return 200 '{version}'; }}
    location = /v1/models {{ return 200 '{models}'; }}
    location / {{
      if ($is_short) {{ return 200 '{answer}'; }}
      mirror /read; root {folder}/nothing; error_page 404 =200 @answer;
    }}
    location = /read {{ internal; return 204; }}
    location @answer {{ return 200 '{answer}'; }}
  }}
"""


@dataclass(frozen=True, slots=True)
class Registration:
    """What an engine says of itself in its heartbeat (docs/protocol.md a)."""

    role: str
    """P or D"""
    http_address: str
    handshake_port: int
    notify_port: int


class NginxEngines:
    """The instances of one role: one nginx, `INSTANCES` addresses."""

    def __init__(self, role: str, folder: Path) -> None:
        name = {"P": "prefill", "D": "decode"}[role]
        self.registrations = [
            Registration(role, f"127.0.0.1:{free_port()}", free_port(), free_port())
            for _ in range(INSTANCES)
        ]
        self._status = free_port()
        servers = "".join(self._server(one, folder) for one in self.registrations)
        path = folder / f"{name}.conf"
        path.write_text(
            CONFIGURATION.format(
                folder=folder, name=name, servers=servers, status_port=self._status
            )
        )
        binary = shutil.which("nginx") or "/usr/sbin/nginx"
        self._program = Program(name, [binary, "-e", "stderr", "-c", str(path)], folder)
        until(self._is_up, f"nginx answers ({name})")

    @staticmethod
    def _server(one: Registration, folder: Path) -> str:
        answer = decode_answer().replace("'", "\\'")
        if one.role == "P":
            answer = prefill_answer(one.http_address, one.handshake_port, one.notify_port)
        return SERVER.format(
            address=one.http_address, version=VERSION, models=MODELS, answer=answer, folder=folder
        )

    @property
    def addresses(self) -> list[str]:
        return [one.http_address for one in self.registrations]

    def count(self) -> int:
        """Requests that were read so far, the probes of routers and these questions among them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._status}/", timeout=10) as answer:
            text = answer.read().decode()
        # "server accepts handled requests", then a line with the three numbers
        return int(text.splitlines()[2].split()[2])

    def _is_up(self) -> bool:
        assert self._program.is_alive, f"nginx ended: {self._program.last_words()}"
        try:
            return self.count() > 0
        except OSError:
            return False

    def close(self) -> None:
        self._program.close()
