"""What outlives a training: who the script is in the job, and what it has made."""

import os
import weakref

from torch.optim import Optimizer

from polyrhythm.runtime.script.data.dealing import Dealing
from polyrhythm.runtime.script.data.loaders import Loaders
from polyrhythm.runtime.script.data.own_files import OwnFiles
from polyrhythm.runtime.script.schedulers import Schedules
from polyrhythm.runtime.script.stalls import Stalls
from polyrhythm.runtime.script.training.objections import Objections
from polyrhythm.runtime.script.wrapper import Lane


class ScriptFacts:
    """What is known of the script.

    Args:
        rank: of this worker.
        workers: ranks of the job.
        schedules: its learning-rate schedulers.
        objections: what it has done that stands against policies.

    Attributes:
        dormant: whether the script uses Polyrhythm itself, and nothing is to be adapted.
        follows: whether the script has come to train in a session, its own or ours.
        distributed: whether the script knows of its ranks; otherwise it was written for a single process.
        compiles: whether it uses the compiler.
        loads: whether it has loaded parameters outside of a session, as of a snapshot.
        lanes: the exchanges of its wrappers.
        trainings: that are over.
        trained_before: optimizers of these.
        copied: optimizers that came of copies or files during a training.
        stalls: looks whether ranks wait for each other.
        files: that this rank writes in the place of the first one's.
    """

    def __init__(self, rank: int, workers: int, schedules: Schedules, objections: Objections) -> None:
        self.rank, self.workers = rank, workers
        self.dormant = self.follows = self.distributed = self.compiles = self.loads = False
        self.lanes: list[Lane] = []
        self.trainings = 0
        self.copied: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.trained_before: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.schedules, self.objections, self.stalls = schedules, objections, Stalls(rank)
        self.optimizers: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        self.loaders = Loaders()
        self.files = OwnFiles()
        self.dealing = Dealing(os.environ, rank, workers)
