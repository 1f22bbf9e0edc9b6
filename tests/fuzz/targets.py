"""The codecs that are fuzzed. Not among them: `exchange/records.py`, whose bytes come over a unix
socket from our own processes of the same version, and whose errors end that link alone."""

import msgspec

from tests.fuzz import (
    bodies,
    envoy_words,
    exchanges,
    forms,
    http1_answers,
    http2_frames,
    own_files,
    registrations,
)
from tests.fuzz.target import Target

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi \\u00e9"}],"stream":true,"n":1}'
PROMPTS = b'{"model":"m","prompt":["a","b"],"max_tokens":16,"echo":false,"stop":null}'
TOKENS = b'{"prompt":[1,2,3],"min_tokens":0,"logprobs":5,"temperature":1.0e-3,"best_of":2}'
MINE = (
    b'{"kv_transfer_params":{"transfer_id":"theirs"},"\\u0072equest_id":"x","n":2,"n":1,'
    b'"ec_transfer_params":{},"kv_transfer_params":null}'
)
NOT_QUITE = b'{"a":[true,false,null,-0.1e+5,NaN],"b":"\\ud83d\\ude00\\ud800","":{}}'
XARGS = b'{"vllm_xargs":{"a":1,"kv_transfer_params":{}},"model":"l","max_tokens":101,"stop":[""]}'
TWO = b'{"prompt":[[1],[2]],"n":"3"}'
BODIES = (CHAT, PROMPTS, TOKENS, MINE, NOT_QUITE, XARGS, TWO, b"{}", b"[" * 90)

SHAPE_A = (
    b'{"type":"register","role":"P","index":"17","request_address":"http://10.0.0.1:8000/v1/x",'
    b'"handshake_port":6301,"notify_port":"61005","dp_size":1,"tp_size":8,"transfer_mode":"READ"}'
)
SHAPE_B = (
    b'{"type":"D","http_address":"fd00::2:8100","zmq_address":'
    b'"host:10.0.0.2,handshake:6301,notify:61005","dp_size":8,"tp_size":1,"transfer_mode":"WRITE"}'
)
HEARTBEATS = (SHAPE_A, SHAPE_B, b'{"type":"HELLO"}', b'{"type":"P","zmq_address":"10.0.0.1:80"}')
ADDRESSES = (
    b"10.0.0.1:80", b"[::ffff:10.0.0.1]:80", b"fe80::1%eth0:80", b"A-b.example.:65535",
    b"host:10.0.0.2,handshake:6301,notify:61005", b"host:fd00::1,handshake:1,notify:2,more:3",
)  # fmt: skip

ANSWERS = (
    b'{"id":"x","kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_block_ids":[[1,2]],"remote_engine_id":"10.0.0.1:6301","transfer_id":"tx-p"}}',
    b'{"kv_transfer_params":null}',
    b'{"kv_transfer_params": {"do_remote_prefill" : true , "transfer_id":1,"transfer_id":2}}',
    b'{"error":{"message":"no","code":400}}',
)
NIXL_ANSWERS = (
    b'{"id":"x","kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_block_ids":[[1, 2]],"remote_engine_id":"e","remote_request_id":"cmpl-r-0-1f",'
    b'"remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,'
    b'"remote_num_tokens":7,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}}',
    b'{"kv_transfer_params" : {"do_remote_prefill" : true , "remote_port":1,"remote_port":2}}',
)
REQUESTS = (
    b"POST /v1/completions\ncontent-length: 9\n\n" + PROMPTS,
    b"POST /v1/chat/completions?x=1\nx-request-id: mine\naccept-encoding: gzip\n\n" + CHAT,
    b"POST /v1/responses\ncontent-encoding: gzip\n\n{}",
    b"POST /v1/messages\nexpect: 100-continue\n\n" + MINE,
    b"POST /tokenize\n\n{}",
    b"POST /v1/embeddings?a\nx-pd-answer: 1\n\n" + CHAT,
    b"POST /v1/chat/completions/batch\ntransfer-encoding: chunked\n\n" + CHAT,
    b"POST /v1/audio/transcriptions\ncontent-type: multipart/form-data; boundary=b\n\n"
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
    b"GET /v1/models\n\n",
    b"GET /v1/responses/resp_1\n\n",
)
PART = b'--b\r\nContent-Disposition: form-data; name="'
FORMS = (
    b"multipart/form-data; boundary=b\n" + PART + b'file"; filename="a.wav"\r\n\r\n\0\xff\r\n'
    + PART + b'model"\r\n\r\nm\r\n' + PART + b'vllm_xargs"\r\n\r\n{"a": 1}\r\n--b--\r\n',
    b'Multipart/Form-Data; charset=latin-1; boundary="b";\n\r\n' + PART
    + b'vllm_xargs"\r\nX: y\r\n\r\n{"\\u006bv_transfer_params": NaN}\r\n--b-- bye',
    b"multipart/form-data; boundary=b\n" + PART + b"a\"; name*=utf-8''model\r\n\r\nm\r\n--b--",
    b"multipart/form-data; boundary=b\n" + PART
    + b'a"; filename="\\"b"\r\n\r\n--b\r\n--b \r\n--b--',
    b"application/x-www-form-urlencoded\nmodel=a&&%6dodel=b&vllm%5Fxargs=%7B%7D+&file",
    b"multipart/mixed; boundary=b\n--b--",
)  # fmt: skip
CONFIGURATION = b"""\
edge: {listen: "127.0.0.1:1"}
connector: moriio
instances:
  - {role: prefill, url: "http://10.0.0.1:8000", zmq_address: "host:a,handshake:1,notify:2"}
  - {role: decode, url: "http://b:8000/v1", models: [m], dp_size: 2}
registration: {allow: [10.0.0.0/8], ttl_s: .5}
"""
ENVIRONMENT = b"EDGE__LISTEN=0.0.0.0:1\nINSTANCES=[{role: prefill, url: x}]\nWORKERS=2\nRUN_DIR="


JSON = (
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "false",
    "NaN",
    "1e999",
    "\\ud800",
    "\\u0065",
)
FIELDS = (
    "kv_transfer_params", "\\u006bv_transfer_params", "ec_transfer_params", "request_id", "prompt",
    "n", "best_of", "use_beam_search", "echo", "prompt_logprobs", "model", "stream", "max_tokens",
    "stop", "min_tokens", "logprobs", "top_logprobs", "stream_options", "tools", "prompt_embeds",
    "max_completion_tokens", "max_output_tokens", "ignore_eos", "truncate_prompt_tokens",
    "vllm_xargs", "store",
)  # fmt: skip
PARAMS = (
    "kv_transfer_params", "do_remote_prefill", "transfer_id", "remote_handshake_port",
    "remote_port",
)  # fmt: skip
CARD = ("data", "id", "parent", "max_model_len", "created", "permission", "9" * 20)
KEYS = (
    "type", "register", "role", "request_address", "http_address", "zmq_address", "handshake_port",
    "notify_port", "dp_size", "tp_size", "transfer_mode", "READ", "WRITE", "https://", "[::1]:80",
    "host:", "handshake:", "notify:", "HELLO", "P", "D",
)  # fmt: skip
HEADERS = (
    "multipart/form-data", "application/x-www-form-urlencoded", "boundary=b", "charset=utf-8",
    "--b", "\r\n--b\r\n", "--b--", "Content-Disposition: ", "form-data; ", 'name="', "name*=",
    "filename=", "\r\n\r\n", "\\", "; ", "%5F", "&",
)  # fmt: skip
SECTIONS = (
    "connector", "nixl", "edge", "listen", "registration", "ttl_s", "allow", "instances", "role",
    "url", "zmq_address", "tuning", "http", "max_body_bytes", "workers", "run_dir", "!!int",
    "!!float", "!!timestamp", "!!bool", "!!binary", "!!python/object", "&a", "*a", "<<", "? ",
    "2001-99-99", "0x", "1:60",
)  # fmt: skip


def _packed(texts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(msgspec.msgpack.encode(msgspec.json.decode(text)) for text in texts)


TARGETS = (
    Target(name="body", check=bodies.check_body, seeds=BODIES, words=JSON + FIELDS, is_json=True),
    Target(
        name="request", check=bodies.check_request, seeds=BODIES, words=JSON + FIELDS, is_json=True
    ),
    Target(name="form", check=forms.check_form, seeds=FORMS, words=HEADERS + FIELDS),
    Target(name="exchange", check=exchanges.check_exchange, seeds=REQUESTS, words=JSON + FIELDS),
    Target(
        name="prefill_answer",
        check=exchanges.check_prefill_answer,
        seeds=ANSWERS + NIXL_ANSWERS,
        words=(*JSON, *PARAMS),
        is_json=True,
    ),
    Target(
        name="nixl_answer",
        check=exchanges.check_nixl_answer,
        seeds=ANSWERS + NIXL_ANSWERS,
        words=(*JSON, *PARAMS),
        is_json=True,
    ),
    Target(
        name="heartbeat", check=registrations.check_heartbeat, seeds=_packed(HEARTBEATS), words=KEYS
    ),
    Target(
        name="heartbeat_map",
        check=registrations.check_heartbeat_map,
        seeds=HEARTBEATS,
        words=JSON + KEYS,
        is_json=True,
    ),
    Target(name="address", check=registrations.check_address, seeds=ADDRESSES, words=KEYS),
    Target(
        name="version",
        check=registrations.check_version,
        seeds=(b'{"version":"0.33.0"}', b'{"version":"v0.1.dev2+g1"}', b'{"version":null}'),
        is_json=True,
    ),
    Target(
        name="models",
        check=registrations.check_models,
        seeds=(b'{"object":"list","data":[{"id":"m","max_model_len":8,"root":"/x"},{"id":""}]}',),
        words=JSON + CARD,
        is_json=True,
    ),
    Target(name="ext_proc", check=envoy_words.check_ext_proc, seeds=envoy_words.ext_proc_seeds()),
    Target(
        name="http1",
        check=http1_answers.check_http1,
        seeds=http1_answers.seeds(),
        words=http1_answers.WORDS,
    ),
    Target(name="http2", check=http2_frames.check_http2, seeds=http2_frames.seeds()),
    Target(
        name="access_log", check=envoy_words.check_access_log, seeds=envoy_words.access_log_seeds()
    ),
    Target(
        name="trail",
        check=envoy_words.check_trail,
        seeds=envoy_words.trail_seeds(),
        words=JSON,
        is_json=True,
    ),
    Target(name="journal", check=own_files.check_journal, seeds=own_files.journal_seeds()),
    Target(
        name="journal_entry",
        check=own_files.check_journal_entry,
        seeds=own_files.journal_entry_seeds(),
    ),
    Target(
        name="registry_file",
        check=own_files.check_registry_file,
        seeds=own_files.registry_file_seeds(),
    ),
    Target(
        name="configuration",
        check=own_files.check_configuration,
        seeds=(CONFIGURATION, b"", b"[]"),
        words=SECTIONS,
    ),
    Target(
        name="environment", check=own_files.check_environment, seeds=(ENVIRONMENT,), words=SECTIONS
    ),
)


def target(name: str) -> Target:
    for one in TARGETS:
        if one.name == name:
            return one
    raise SystemExit(f"no target {name}; there are: {', '.join(one.name for one in TARGETS)}")
