"""Names of the built-in tasks and their models, known without importing torch."""

TASKS: dict[str, tuple[str, ...]] = {
    "digits": ("mlp", "cnn", "wide"),
    "fashion-mnist": ("cnn", "mlp", "resnet20", "resnet32"),
    "cifar10": ("resnet20", "resnet32", "cnn", "mlp"),
    "cifar10-16": ("resnet20", "resnet32", "cnn", "mlp"),
    "text": ("transformer", "transformer-small"),
}
"""Models of each task; the first is its default."""
