"""``python -m polyrhythm.runtime.script``: what a worker is before its script runs."""

from tests.runtime.places import Place


def test_a_line_is_one_write_and_so_is_not_mixed_with_anothers(place: Place) -> None:
    """Two ranks that printed at the same time gave `trainedtrained 1 ` once."""
    counted = """
written = []
sys.stdout.flush()
reader, writer = os.pipe()
os.dup2(writer, 1)
for rank_ in range(2):
    print("trained", rank_, end=", ")
    print("by", rank)
    written.append(os.read(reader, 100).decode())
print("no end", end="")
sys.stdout.flush()
written.append(os.read(reader, 100).decode())
with open(f"written{rank}", "w") as file:
    file.write(repr(written))
"""
    done = place.run(counted, "--nproc-per-node", "2", "--policy", "asp")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        written = (place.folder / "work" / f"written{rank}").read_text()
        assert written == repr([f"trained 0, by {rank}\n", f"trained 1, by {rank}\n", "no end"])
