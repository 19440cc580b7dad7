"""What happens inside a training run: gradients, their change, curvature, and weights."""

from polyrhythm.diagnose.study import Diagnosis as Diagnosis
from polyrhythm.diagnose.study import diagnose as diagnose
