"""The faults of faults.txt: which lines of which module become which."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Fault:
    """In `module` of prfaas_ref.cache the lines `before` become `after`, and then: `story`."""

    module: str
    story: str
    before: str
    after: str

    def plant(self, source: str) -> str:
        """`source` with the fault in it. Raises ValueError unless there is one place for it."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.module}.py has {source.count(self.before)} places for the fault {self.story!r}")
        return source.replace(self.before, self.after)


def source(module: str) -> str:
    """The text of one module of prfaas_ref.cache."""
    return files("prfaas_ref.cache").joinpath(f"{module}.py").read_text(encoding="utf-8")


def read_faults() -> list[Fault]:
    text = files("prfaas_ref.cache.conformance").joinpath("faults.txt").read_text(encoding="utf-8")
    return list(_parse(text))


def _parse(text: str) -> Iterator[Fault]:
    for block in text.split("\n== ")[1:]:
        title, *lines = block.splitlines()
        module, _, story = title.partition(": ")
        before = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("-", " "))
        after = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("+", " "))
        yield Fault(module, story, before, after)
