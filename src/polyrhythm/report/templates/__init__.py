"""The frame of all our pages, `base.html.j2`, and what fills it for a command."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from polyrhythm import __version__


def pages(package: str, folder: str = "templates") -> Environment:
    """Templates of a package, which extend the frame."""
    loader = ChoiceLoader([PackageLoader(package, folder), PackageLoader("polyrhythm.report")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals["version"] = __version__
    return environment
