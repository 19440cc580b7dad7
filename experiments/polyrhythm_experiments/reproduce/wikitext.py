"""The validation part of WikiText-2 with few words told apart, as a text file for the task text."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from polyrhythm.errors import DataError
from polyrhythm.training.data.tasks.images import needed, plain
from polyrhythm_experiments.reproduce.lab import Lab

REPOSITORY, SUBSET = "Salesforce/wikitext", "wikitext-2-v1"
WORDS = 1_000
"""Most frequent words that are told apart; the others are `RARE`."""
RARE = "<unk>"
"""As WikiText-2 has it for the words that it leaves out."""


def text_file(lab: Lab) -> str:
    """Where the text is, beside the finished runs; of made-up words for a quick look.

    Raises:
        DataError: if it is neither in the folder of the data sets nor can be downloaded.
    """
    path = lab.store.folder / ("made-up.txt" if lab.quick else "wikitext-2.txt")
    if not path.exists():
        words = made_up() if lab.quick else frequent(source(lab.data).split())
        path.write_text(" ".join(words), encoding="utf-8")
    return str(path)


def frequent(words: Sequence[str]) -> list[str]:
    """The words, with all but the most frequent replaced.

    >>> Counter(frequent(["a", "a", "<unk>", *map(str, range(WORDS)), "a"])).most_common(1)
    [('a', 3)]
    """
    known = {word for word, _ in Counter(words).most_common(WORDS)}
    return [word if word in known else RARE for word in words]


def source(folder: str | None) -> str:
    """The text of WikiText-2's validation part: a file of the folder, otherwise downloaded."""
    found = [] if folder is None else [path for path in sorted(Path(folder).rglob("*.txt")) if is_source(path)]
    try:
        return found[0].read_text(encoding="utf-8") if found else download()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise DataError(
            f"WikiText-2 could not be had ({type(error).__name__}: {why}); put its validation part, a text file such "
            "as wikitext2-valid.txt, in the folder of --data"
        ) from error


def is_source(path: Path) -> bool:
    """Whether a file's name says that it is the validation part.

    >>> is_source(Path("wikitext-2/wiki.valid.tokens.txt")), is_source(Path("wikitext2-test.txt"))
    (True, False)
    """
    return "wiki" in plain(path.name) and "valid" in plain(path.name)


def download() -> str:
    table = needed("datasets").load_dataset(REPOSITORY, SUBSET, split="validation")
    return "\n".join(row["text"] for row in table)


def made_up() -> list[str]:
    """Some words, each of which says something about the next."""
    draw, word, words = random.Random(0), 0, []
    for _ in range(8_000):
        word = (3 * word + draw.randrange(4)) % 50
        words.append(f"w{word}")
    return words
