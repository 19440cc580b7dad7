"""Python runs this when it starts, because the doctor has put its folder on the path: in a rank, watch torch."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

HERE = str(Path(__file__).parent)


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets torch be imported as ever, and installs the watcher when that is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real module's spec with us as its loader, once."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        self._real = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the real loader does; then the watcher."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        from polyrhythm.doctor.watch.watcher import RankWatcher, watched_folder

        if (folder := watched_folder()) is not None:
            RankWatcher(folder).install()


def run_next() -> None:
    """The sitecustomize that would have run without us."""
    others = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


run_next()
if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
