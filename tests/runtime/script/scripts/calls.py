# mypy: ignore-errors
"""Calls about files, by a script or, from another folder, by a library, as if on a rank that may not write."""
# ruff: noqa: PTH103, PTH105, PTH106, PTH107, PTH110, PTH116, PTH208, PTH211

import os
import pathlib
import shutil
import tempfile

import torch

from polyrhythm.runtime.script.data.file_calls import patch_files
from polyrhythm.runtime.script.data.own_files import OwnFiles


class Holder:
    """What a function in place of a built-in one would be bound to."""

    open, stat = open, os.stat


files = OwnFiles()
patch_files(files, lambda: False)
files.begin()
Holder.open, Holder.stat = open, os.stat
with Holder().open("a", "w") as out:
    out.write("a")
assert Holder().stat("a").st_size == os.stat(b"a").st_size == 1
assert os.access("a", os.R_OK)
assert not os.access("never", os.R_OK)
assert os.lstat("a").st_size == 1
shutil.copy2("a", "b")
assert pathlib.Path("b").read_text() == "a"
os.symlink("b", "latest")
assert pathlib.Path("latest").read_text() == "a"
os.remove("latest")
pathlib.Path("b").rename("c")
assert shutil.move(pathlib.Path("c"), "b") == "b"
shutil.copy("b", "c")
os.makedirs("kept", exist_ok=True)
assert shutil.move("b", "kept") == "kept/b"
os.replace("kept/b", "b")
os.rmdir("kept")
with tempfile.TemporaryDirectory(dir=".") as folder:
    pathlib.Path(folder, "x").write_text("x")
    assert os.listdir(folder) == ["x"]
    pathlib.Path(folder, "x").unlink()
    pathlib.Path(folder, "y").touch()
assert not os.path.exists(folder)
torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), "own.script")
assert torch.jit.load("own.script")(torch.ones(1)).shape == (1,)
os.remove("own.script")
with open(os.devnull, "w") as out:
    out.write("nothing")
