"""Inputs for hypothesis: a target's own, and what is left of them after a few edits."""

from hypothesis import strategies as st

from tests.fuzz.target import Target

_EDITS = st.tuples(
    st.sampled_from(("replace", "insert", "cut", "repeat")),
    st.integers(0, 4096),
    st.integers(0, 40),
)


@st.composite
def mutated(draw: st.DrawFn, target: Target) -> bytes:
    """One of its seeds or corpus, edited up to four times."""
    data = draw(st.sampled_from(target.starts))
    snippets = st.binary(max_size=6)
    if target.words:
        snippets |= st.sampled_from(target.words).map(str.encode)
    for kind, where, length in draw(st.lists(_EDITS, max_size=4)):
        data = _edited(data, kind, where % (len(data) + 1), length, draw(snippets))
    return data


def _edited(data: bytes, kind: str, at: int, length: int, snippet: bytes) -> bytes:
    if kind == "insert":
        return data[:at] + snippet + data[at:]
    if kind == "replace":
        return data[:at] + snippet + data[at + len(snippet) :]
    if kind == "cut":
        return data[:at] + data[at + length :]
    return data[: at + length] + data[at:]
