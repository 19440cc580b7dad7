"""The built-in tasks. To add one: its file, its line in `build_task`, its names in the catalogue."""

from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task
from polyrhythm.training.data.tasks.digits import digits_task
from polyrhythm.training.data.tasks.images import IMAGE_SETS, image_task
from polyrhythm.training.data.tasks.text import text_task


def build_task(config: TrainingConfig) -> Task:
    """The task of a configuration, with its data in memory.

    Raises:
        DataError: if the data are missing or not as expected.
    """
    if config.task in IMAGE_SETS:
        task = image_task(IMAGE_SETS[config.task], config.model_name, config.data)
    elif config.task == "text":
        task = text_task(config.data, config.tokens, config.model_name)
    else:
        task = digits_task(config.model_name)
    return task.subset(config.train_samples, config.test_samples)
