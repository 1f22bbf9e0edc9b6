"""What a fuzzer is pointed at."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    """also that of its folder in the corpus"""
    check: Callable[[bytes], None]
    """raises on a finding, and on nothing else"""
    seeds: tuple[bytes, ...]
    """from which every search begins; what searches found worth keeping is in the corpus"""
    words: tuple[str, ...] = ()
    """worth trying inside an input"""
    is_json: bool = False
    """the search may follow a JSON parser's branches"""

    @property
    def kept(self) -> list[bytes]:
        """The corpus: inputs that once found something, or that reach code no seed reaches."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))]

    @property
    def starts(self) -> list[bytes]:
        return [*self.seeds, *self.kept]
