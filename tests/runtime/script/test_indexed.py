"""Scripts that look rates up by the number of their mini-batch, or save with the last one."""

import ast
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from polyrhythm.runtime.script.data.indexed import Finder, comparisons, first_line, lookups
from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_no_worker_takes_more_mini_batches_than_the_table_has(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path / "ours", "indexed.py", policy=policy, stand_in=False)
    taken = [(run.folder / f"taken.{rank}").read_text("utf-8").split() for rank in run.ranks]
    assert taken == [["12"] * 3] * 2
    assert "looks something up by the number of its mini-batch" in run.stderr()
    if policy == "bsp":
        theirs = plain(tmp_path / "theirs", "indexed.py", stand_in=False)
        assert (run.folder / "weights.0").read_text("utf-8") == (theirs.folder / "weights.0").read_text("utf-8")


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_a_slow_rank_comes_to_the_last_mini_batch_that_its_script_compares_with(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "last.py", policy=policy, stand_in=False)
    assert [(run.folder / f"saves.{rank}").read_text("utf-8") for rank in run.ranks] == ["3", "3"]
    assert "compares the number of its mini-batch with its loader's length" in run.stderr()


@pytest.mark.parametrize(("policy", "settings"), [("balanced", {}), ("asp", {"partition": "seldp"})])
def test_a_job_that_must_deal_says_that_the_last_one_may_not_come(
    tmp_path: Path, policy: str, settings: dict[str, Any]
) -> None:
    run = adapted(tmp_path, "last.py", policy=policy, stand_in=False, **settings)
    assert "which a slow worker does not reach" in run.stderr()


@pytest.mark.parametrize(
    "body",
    [
        "save(i == len(loader) - 1)",
        "if i + 1 == len(loader) and rank == 0: save()",
        "if (i + 1) % len(loader) == 0: save()",
        "if not (i + 1) % most: save()",
        "if at == most - 1: save()",
        "if i < len(loader) // 2: save()",
        "last = i == most - 1",
        "last = i == most - 1\n    if last: optimizer.step()\n    if last: save()",
        "if i == most - 1: optimizer.step(), save()",
        "last = most - 1\n    if i == last: save()",
    ],
)
def test_comparisons_are_found(body: str) -> None:
    assert found_in(body)


@pytest.mark.parametrize(
    "body",
    [
        "if i % 10 == 0: print(i)",
        "if i == len(loader) - 1: print(i)",
        'print(f"{i}/{len(loader)}", "last" if i == len(loader) - 1 else "")',
        "bar = tqdm(total=len(loader))",
        "if i % (len(loader) // 10) == 0: evaluate()",
        "if (i + 1) % 4 == 0 or i + 1 == len(loader): optimizer.step()",
        "last = i % 4 == 0 or i + 1 == most\n    if last: scaler.step(optimizer)",
        "if at == most: clip_grad_norm_(model.parameters(), 1), scaler.step(optimizer), scaler.update(), print(i)",
        "if i == len(x): save()",
        "if i > 100: break",
        "shown = colours[i % len(colours)]",
    ],
)
def test_what_changes_nothing_is_not_found(body: str) -> None:
    assert not found_in(body)


HABITS = {
    "a bar with a name": """
        bar = tqdm(loader, desc="train")
        for i, x in enumerate(bar):  # reads
            save(i == len(loader) - 1)
        """,
    "a bar by with": """
        with tqdm(loader, total=len(loader)) as bar:
            for i, x in enumerate(bar):  # reads
                if i + 1 == len(loader): save()
        """,
    "a bar on one rank": """
        def train(loader, rank):
            bar = enumerate(loader)
            if rank == 0:
                bar = tqdm(bar, total=len(loader))
            for i, x in bar:  # reads
                if i == len(loader) - 1: save()
        """,
    "a bar of an object": """
        self.bar = tqdm.auto.tqdm(self.loader)
        for i, x in enumerate(self.bar):  # reads
            if i == len(self.loader) - 1: save()
        """,
    "a name with a type": """
        most: int = len(loader)
        for i, x in enumerate(loader):  # reads
            at: int = i + 1
            if at == most: save()
        """,
    "a length named in an expression": """
        if (most := len(loader)) > 4:
            last = most - 1
        for i, x in enumerate(loader):  # reads
            if i == last: save()
        """,
    "both named in the comparison": """
        for i, x in enumerate(loader):  # reads
            if (at := i + 1) == (most := len(loader)): save()
        """,
    "the lesser of two": """
        most = min(len(loader), args.most)
        for i, x in enumerate(loader):  # reads
            if i + 1 == most: save()
        """,
    "the greater of two, in place": """
        for i, x in enumerate(loader):  # reads
            if (i + 1) % max(1, len(loader)) == 0: save()
        """,
    "counted by hand": """
        step = 0
        for x in loader:  # reads
            step += 1
            if step == len(loader): save()
        """,
    "counted by hand over all epochs": """
        for epoch in range(9):
            for x, y in loader:  # reads
                with accumulate(model):
                    self.step += 1
                if self.step % len(loader) == 0: save()
        """,
    "all of it": """
        step, most = 0, 0
        bar: tqdm = tqdm(loader)
        limit: int = min(args.limit, (most := len(loader)))
        for x in bar:  # reads
            step += 1
            if step >= limit: save()
        """,
    "over several lines": """
        for i, x in enumerate(
            tqdm(
                loader,  # reads
            )
        ):
            if i == len(loader) - 1: save()
        """,
}

HARMLESS_HABITS = {
    "the length of another": """
        bar = tqdm(total=len(loader))
        for i, x in enumerate(others):  # reads
            if i == len(loader) - 1: save()
        """,
    "the length of the data": """
        loader = DataLoader(data, batch_size=size)
        for i, x in enumerate(loader):  # reads
            if i == len(data) - 1: save()
        """,
    "what a bar says": """
        bar = tqdm(loader, desc=words, total=most)
        for i, x in enumerate(bar):  # reads
            if i == len(words): save()
        """,
    "ten times an epoch": """
        every = max(1, len(loader) // 10)
        for i, x in enumerate(loader):  # reads
            if i % every == 0 or i % max(1, len(loader) // 3) == 0: evaluate()
        """,
    "epochs": """
        for epoch, rate in enumerate(rates):
            for x in loader:  # reads
                step(x, rate)
            if epoch == len(rates) - 1: save()
        """,
    "epochs by hand": """
        done = 0
        for rate in rates:
            for x in loader:  # reads
                step(x, rate)
            done += 1
            if done == len(rates): save()
        """,
    "steps of an optimizer": """
        for i, x in enumerate(loader):  # reads
            if i % 4 == 3:
                steps += 1
            if steps == len(loader): save()
        """,
    "what is set back": """
        every = min(args.accumulate, len(loader))
        for x in loader:  # reads
            pending += 1
            if pending == every:
                pending = 0
                update(model)
        """,
    "what an inner loop counts": """
        for x in loader:  # reads
            for word in x:
                words += 1
            if words == len(loader): save()
        """,
    "samples": """
        for x in loader:  # reads
            seen += len(x)
            if seen == len(loader.dataset) or seen == len(loader): save()
        """,
    "a generator that says how far it is": """
        def log_every(loader, header):
            i = 0
            for x in loader:  # reads
                yield x
                if i % 10 == 0 or i == len(loader) - 1:
                    eta = str(datetime.timedelta(seconds=int(mean * (len(loader) - i))))
                    if torch.cuda.is_available():
                        print(header, eta, memory())
                i += 1
        """,
    "what is measured to be said": """
        def evaluate(loader, total):
            start = time.time()
            return test(loader), start, total
        start, total = time.time(), 0.0
        for x in loader:  # reads
            step += 1
            total += loss.item()
            if step % 10 == 0 or step == len(loader):
                elapsed = time.time() - start
                if rank == 0:
                    print(total / elapsed)
                start, total = time.time(), 0.0
        """,
    "a meter's line, or a writer's": """
        for i, x in enumerate(loader):  # reads
            if i % 10 == 0 or i == len(loader) - 1:
                progress.display(i + 1)
            elif i + 1 == len(loader):
                writer.add_scalar("loss", loss.item(), i)
        """,
    "when to step, and how it goes": """
        for i, x in enumerate(loader):  # reads
            if i % 4 == 3 or i + 1 == len(loader):
                scheduler.step(), optimizer.step()
                if rank == 0:
                    loss = float(loss.item())
                    writer.add_scalar("rate", scheduler.get_last_lr()[0], i)
        """,
    "when to step, with a type": """
        for i, x in enumerate(loader):  # reads
            last: bool = i + 1 == len(loader)
            if last or i % 4 == 3:
                optimizer.step()
        """,
}


@pytest.mark.parametrize("habit", HABITS)
def test_habits_are_found(habit: str, tmp_path: Path) -> None:
    assert looked_at(HABITS[habit], tmp_path, comparisons)


@pytest.mark.parametrize("habit", HARMLESS_HABITS)
def test_harmless_habits_are_not_found(habit: str, tmp_path: Path) -> None:
    assert not looked_at(HARMLESS_HABITS[habit], tmp_path, comparisons)


def test_what_is_measured_counts_once_more_than_a_line_depends_on_it(tmp_path: Path) -> None:
    said = HARMLESS_HABITS["what is measured to be said"]
    assert looked_at(said.rstrip() + "\n            rate(total, elapsed)", tmp_path, comparisons)
    assert looked_at(said.replace("= time.time() - start", "= evaluate(model)"), tmp_path / "other", comparisons)


@pytest.mark.parametrize(
    ("script", "is_found"),
    [
        ("bar = tqdm(loader)\nfor i, x in enumerate(bar):  # reads\n    rate = rates[i]", True),
        ("for i, x in enumerate(loader):  # reads\n    rate = rates[(at := i + 1)]", True),
        ("for i, x in enumerate(loader):  # reads\n    rate = rates[min(i, len(rates) - 1)]", False),
        ("for x in loader:  # reads\n    step += 1\n    history[step] = loss", False),
        ("for x, y in loader:  # reads\n    z = table[x]", False),
        (
            "def train():\n    bar = tqdm(loader)\n    for x, y in bar:  # reads\n        z = table[x]\n"
            "def test():\n    bar = enumerate(loader)\n    for i, x in bar: look(x)",
            False,
        ),
        ("for epoch, rate in enumerate(rates):\n    for x in loader:  # reads\n        step(past[epoch])", False),
    ],
)
def test_what_is_looked_up(script: str, is_found: bool, tmp_path: Path) -> None:
    assert looked_at(script, tmp_path, lookups) == is_found


def looked_at(script: str, folder: Path, find: Finder) -> bool:
    """Whether something is found in the loop that reads."""
    folder.mkdir(exist_ok=True)
    path, code = folder / "script.py", dedent(script).lstrip("\n")
    path.write_text(code, encoding="utf-8")
    line = next(number for number, text in enumerate(code.splitlines(), 1) if "# reads" in text)
    return bool(first_line(str(path), line, find))


def found_in(body: str) -> list[ast.expr]:
    script = ast.parse(f"most = len(loader)\nfor i, x in enumerate(tqdm(loader)):\n    at = i + 1\n    {body}\n")
    loop = script.body[1]
    assert isinstance(loop, ast.For)
    return list(comparisons(loop, script))
