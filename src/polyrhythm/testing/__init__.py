"""For tests of your own policies: the conformance kit and the scripted cluster that it plays them on."""

from polyrhythm.testing.conformance import conformance as conformance
from polyrhythm.testing.conformance import scripts as scripts
from polyrhythm.testing.laws import ConformanceError as ConformanceError
from polyrhythm.testing.laws import check as check
from polyrhythm.testing.script import ClusterScript as ClusterScript
from polyrhythm.testing.script import Fault as Fault
from polyrhythm.testing.script import LateJoin as LateJoin
from polyrhythm.testing.stage import ScriptPlayer as ScriptPlayer
