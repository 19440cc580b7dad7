"""Published tables and figures, run again at the size of a laptop: the paper's number, ours, and why they differ."""

from polyrhythm_experiments.reproduce.figures import Measured as Measured
from polyrhythm_experiments.reproduce.figures import over_seeds as over_seeds
from polyrhythm_experiments.reproduce.figures import ratio as ratio
from polyrhythm_experiments.reproduce.lab import Lab as Lab
from polyrhythm_experiments.reproduce.lab import Trial as Trial
from polyrhythm_experiments.reproduce.page import ClaimRow as ClaimRow
from polyrhythm_experiments.reproduce.page import Series as Series
from polyrhythm_experiments.reproduce.page import claims as claims
from polyrhythm_experiments.reproduce.page import drawing as drawing
from polyrhythm_experiments.reproduce.page import findings as findings
from polyrhythm_experiments.reproduce.page import reproduction as reproduction
from polyrhythm_experiments.reproduce.papers import PAPERS as PAPERS
from polyrhythm_experiments.reproduce.papers import PaperRequest as PaperRequest
from polyrhythm_experiments.reproduce.papers import reproduce as reproduce
