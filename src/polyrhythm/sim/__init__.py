"""The simulator: policies on a virtual cluster, in virtual time, with real gradients or none."""

from polyrhythm.sim.cluster.compute import Compute as Compute
from polyrhythm.sim.cluster.compute import Sleep as Sleep
from polyrhythm.sim.cluster.faults import Faults as Faults
from polyrhythm.sim.cluster.faults import Join as Join
from polyrhythm.sim.cluster.faults import Leave as Leave
from polyrhythm.sim.cluster.faults import RandomLeaves as RandomLeaves
from polyrhythm.sim.cluster.faults import RandomStragglers as RandomStragglers
from polyrhythm.sim.cluster.faults import Straggler as Straggler
from polyrhythm.sim.cluster.files import built_in_scenarios as built_in_scenarios
from polyrhythm.sim.cluster.files import load_scenario as load_scenario
from polyrhythm.sim.cluster.files import scenario_toml as scenario_toml
from polyrhythm.sim.cluster.links import Network as Network
from polyrhythm.sim.cluster.scenario import Device as Device
from polyrhythm.sim.cluster.scenario import Limits as Limits
from polyrhythm.sim.cluster.scenario import Scenario as Scenario
from polyrhythm.sim.cluster.scenario import TimingWorkload as TimingWorkload
from polyrhythm.sim.run import compare as compare
from polyrhythm.sim.run import simulate as simulate
from polyrhythm.sim.run import sweep as sweep
