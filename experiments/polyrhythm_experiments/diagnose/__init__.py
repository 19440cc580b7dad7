"""What happens inside a training run: gradients, their change, curvature, and weights."""

from polyrhythm_experiments.diagnose.study import Diagnosis as Diagnosis
from polyrhythm_experiments.diagnose.study import diagnose as diagnose
