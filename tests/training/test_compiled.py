"""What torch.compile sees of ours, in a process of its own: what it skips is said once."""

import subprocess
import sys

BROKEN = """
import torch
from torch import nn
from polyrhythm.runtime.script.forward_hook import ForwardHook
from polyrhythm.training.compiled import hide_from_compiler
from polyrhythm.runtime.collectives.group_health import first_line

hide_from_compiler()
sizes, called = [], []


def count(graph, inputs):
    sizes.append(sum(node.op == "call_function" for node in graph.graph.nodes))
    return graph.forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forward(self, x):
        return self.inner(torch.relu(x))


net = Net()
net.inner.register_forward_pre_hook(ForwardHook(lambda module, inputs: called.append(module)))


@torch.compile(backend=count)
def loss(x):
    name = first_line(ValueError("one"))
    return torch.sin(net(x)), name


assert loss(torch.zeros(1, 2))[1] == "one"
assert sizes == [4], sizes  # relu, two layers and the sine: the call of ours is before them
assert not called
net(torch.zeros(1, 2))
assert called == [net.inner]
"""


def test_a_graph_ends_at_a_call_of_ours_and_not_at_a_hook() -> None:
    subprocess.run([sys.executable, "-c", BROKEN], check=True)
