"""What torch.compile makes of Polyrhythm's calls in a script: it leaves them to Python, as it does torch's own."""

import functools
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SEEN = PACKAGE / "runtime" / "script" / "forward_hook.py"
"""The compiler looks into this file, as modules within a graph are called with hooks."""


@functools.cache
def hide_from_compiler() -> None:
    """Have graphs end at a call of ours, and begin anew in the model that it calls.

    Traced, a graph would keep how things stood at the first step, whatever the policy does later.
    """
    from torch._dynamo import trace_rules  # which takes seconds to import, and an optimizer has done so

    trace_rules.SKIP_DIRS.extend(map(str, all_but(SEEN)))
    trace_rules.add("polyrhythm.errors")  # makes one expression of all


def all_but(file: Path) -> Iterator[Path]:
    """The files and folders that hold all of Polyrhythm but this file.

    >>> hidden = {str(each.relative_to(PACKAGE)) for each in all_but(SEEN)}
    >>> {"core", "training", "runtime/worker", "runtime/script/data", "runtime/script/wrapper.py"} < hidden
    True
    >>> hidden & {"runtime", "runtime/script", "runtime/script/forward_hook.py"}
    set()
    """
    for inner, folder in pairwise([file, *file.parents]):
        yield from (each for each in folder.iterdir() if each != inner)
        if folder == PACKAGE:
            return
