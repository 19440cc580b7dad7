"""The simulator: policies on a virtual cluster, in virtual time, with real gradients or none."""

from polyrhythm.sim.compute import Compute as Compute
from polyrhythm.sim.compute import Sleep as Sleep
from polyrhythm.sim.faults import Faults as Faults
from polyrhythm.sim.faults import Join as Join
from polyrhythm.sim.faults import Leave as Leave
from polyrhythm.sim.faults import RandomLeaves as RandomLeaves
from polyrhythm.sim.faults import RandomStragglers as RandomStragglers
from polyrhythm.sim.faults import Straggler as Straggler
from polyrhythm.sim.files import built_in_scenarios as built_in_scenarios
from polyrhythm.sim.files import load_scenario as load_scenario
from polyrhythm.sim.files import scenario_toml as scenario_toml
from polyrhythm.sim.links import Network as Network
from polyrhythm.sim.run import simulate as simulate
from polyrhythm.sim.run import sweep as sweep
from polyrhythm.sim.scenario import Device as Device
from polyrhythm.sim.scenario import Limits as Limits
from polyrhythm.sim.scenario import Scenario as Scenario
from polyrhythm.sim.scenario import TimingWorkload as TimingWorkload
