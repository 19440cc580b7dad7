# mypy: ignore-errors
"""Calls about files, by a script or, from another folder, by a library, as if on a rank that may not write."""
# ruff: noqa: PTH103, PTH104, PTH105, S301, PTH106, PTH107, PTH110, PTH116, PTH208, PTH211

import copy
import os
import pathlib
import pickle
import shutil
import tempfile

import torch

from polyrhythm.runtime.script.data.file_calls import turn_to_own
from polyrhythm.runtime.script.data.own_files import OwnFiles


class Holder:
    """What a function in place of a built-in one would be bound to."""

    open, stat = open, os.stat


turn_to_own(OwnFiles())
Holder.open, Holder.stat = open, os.stat
with Holder().open("a", "w") as out:
    out.write("a")
assert Holder().stat("a").st_size == os.stat(b"a").st_size == 1
assert os.access("a", os.R_OK)
assert not os.access("never", os.R_OK)
assert os.lstat("a").st_size == 1
assert os.listxattr() is not None
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
torch.jit.save(m=torch.jit.script(torch.nn.Linear(1, 1)), f="/dev/null")
for call in (open, os.stat, torch.load):
    assert copy.deepcopy({"loader": call})["loader"] is pickle.loads(pickle.dumps(call)) is call
assert shutil.rmtree.avoids_symlink_attacks in (True, False)
os.makedirs("full/inner")
with open("full/inner/x", "w") as out:
    out.write("x")
os.makedirs("full/other")
os.removedirs("full/other")
assert os.path.exists("full/inner/x")
for number in range(2):
    half = tempfile.mkdtemp(dir=".")
    torch.save(number, half + "/model.pt")
    shutil.rmtree("whole", ignore_errors=True)
    os.rename(half, "whole")
    assert torch.load("whole/model.pt") == number
with open(os.devnull, "w") as out:
    out.write("nothing")
