"""What lies in a folder: finds the reader of the traces in it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.readers.kineto import profiled, read_kineto
from polyrhythm.doctor.readers.operations import Operations, read_operations
from polyrhythm.doctor.readers.own_traces import read_own
from polyrhythm.doctor.readers.rings import read_rings
from polyrhythm.errors import TraceError

FORMATS = ("*.ring", "*.jsonl", "*.parquet", "*.json", "*.json.gz")
KNOWN = "traces of polyrhythm run (.jsonl), of torch.profiler (.json, one a rank) or of StragglerAnalysis (.parquet)"


def read_any(path: Path) -> Evidence | Operations:
    """The traces of one job, from a folder or a file."""
    if not path.exists():
        raise TraceError(f"there is no {str(path)!r}; give a folder with {KNOWN}")
    found = {pattern: sorted(path.glob(pattern)) for pattern in FORMATS} if path.is_dir() else of_file(path)
    if found.get("*.ring") or found.get("*.jsonl") or found.get("*.parquet"):
        # Results and settings lie beside such traces as JSON.
        found |= {pattern: list(filter(profiled, found.get(pattern, []))) for pattern in ("*.json", "*.json.gz")}
    kinds = {pattern.removesuffix(".gz"): paths for pattern, paths in found.items() if paths}
    if not kinds:
        raise TraceError(f"{str(path)!r} has no trace; give a folder with {KNOWN}")
    if len(kinds) > 1:
        raise TraceError(f"{str(path)!r} has traces of {len(kinds)} kinds ({', '.join(kinds)}); give one kind")
    (pattern,) = kinds
    paths = [one for name, more in found.items() if name.removesuffix(".gz") == pattern for one in more]
    return read_parquet(path, paths) if pattern == "*.parquet" else READERS[pattern](paths)


READERS: dict[str, Callable[[Sequence[Path]], Evidence]] = {
    "*.ring": read_rings,
    "*.jsonl": read_own,
    "*.json": read_kineto,
}


def of_file(path: Path) -> dict[str, list[Path]]:
    return {pattern: [path] for pattern in FORMATS if path.match(pattern)}


def read_parquet(folder: Path, paths: Sequence[Path]) -> Operations:
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise TraceError(f"{str(folder)!r} has {len(paths)} jobs ({names}); name the file of one")
    return read_operations(paths[0])
