"""Published tables and figures, run again at the size of a laptop: the paper's number, ours, and why they differ."""

from polyrhythm.reproduce.figures import Measured as Measured
from polyrhythm.reproduce.figures import over_seeds as over_seeds
from polyrhythm.reproduce.figures import ratio as ratio
from polyrhythm.reproduce.lab import Lab as Lab
from polyrhythm.reproduce.lab import Trial as Trial
from polyrhythm.reproduce.page import Row as Row
from polyrhythm.reproduce.page import Series as Series
from polyrhythm.reproduce.page import claims as claims
from polyrhythm.reproduce.page import drawing as drawing
from polyrhythm.reproduce.page import findings as findings
from polyrhythm.reproduce.page import reproduction as reproduction
from polyrhythm.reproduce.papers import PAPERS as PAPERS
from polyrhythm.reproduce.papers import Request as Request
from polyrhythm.reproduce.papers import reproduce as reproduce
