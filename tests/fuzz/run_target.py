"""One target under atheris, in a process of its own: `python -m tests.fuzz.run_target NAME …`.

What follows the name goes to libFuzzer: its options, then folders (it writes to the first), or one
file, which is then replayed.
"""

import logging
import sys
from contextlib import suppress

import atheris

from tests.fuzz import reference  # with the parser of the engines, before it is loaded once more

for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
    del sys.modules[name]
INCLUDED = ["sidecar", "json", "yaml", "ipaddress", "python_multipart"]
with atheris.instrument_imports(include=INCLUDED):
    import json.decoder
    import json.scanner

    from tests.fuzz.targets import target

# In Python in place of C: its branches are coverage, which leads the search through the grammar.
# The codecs' own parser is C, where nothing is seen. It judges nothing: it is laxer than the one in
# C (`\\u 0e9`).
json.decoder.scanstring = json.decoder.py_scanstring
json.scanner.make_scanner = json.scanner.py_make_scanner
_guide = json.decoder.JSONDecoder()


def main() -> None:
    """Ends the process: libFuzzer's exit code is not zero after a finding."""
    one = target(sys.argv[1])
    # That a file of ours is broken is said for each of them.
    logging.getLogger("sidecar.app.registry_file").setLevel(logging.ERROR)

    def check(data: bytes) -> None:
        if one.is_json:
            with suppress(ValueError, RecursionError):
                _guide.decode(data.decode())
        one.check(data)

    atheris.enabled_hooks.add("str")
    atheris.enabled_hooks.add("RegEx")
    atheris.Setup([f"fuzz-{one.name}", *sys.argv[2:]], check)
    atheris.Fuzz()


if __name__ == "__main__":
    assert reference.json is not json
    main()
