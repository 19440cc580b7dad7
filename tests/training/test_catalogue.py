import pytest

from polyrhythm.training.catalogue import TASKS
from polyrhythm.training.data.tasks.images import IMAGE_SETS
from polyrhythm.training.models import vision_model

VISION = [(task, model) for task, models in TASKS.items() if task != "text" for model in models]


@pytest.mark.parametrize(("task", "model"), VISION)
def test_every_model_of_the_catalogue_is_built(task: str, model: str) -> None:
    channels, side = (IMAGE_SETS[task].channels, IMAGE_SETS[task].side) if task in IMAGE_SETS else (1, 8)
    assert list(vision_model(model, channels, side)(0).parameters())


def test_every_image_set_is_in_the_catalogue() -> None:
    assert set(TASKS) == {"digits", "text", *IMAGE_SETS}
