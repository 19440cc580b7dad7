"""What the data plane is compared with: each opens its server and returns the call that makes one exchange."""

import multiprocessing
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from polyrhythm.runtime.wire.connection import connect, listen

Opener: TypeAlias = Callable[[int, ExitStack], Callable[[], None]]
"""Takes the number of parameters, and a stack on which servers end."""

SPAWN = multiprocessing.get_context("spawn")
RATE = 1e-6
"""Learning rate of every server; small, so that nothing grows."""
ECHO_BYTES = 32
"""A frame that says that a gradient is in its slot."""


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        return int(sock.getsockname()[1])


def start_server(target: Callable[..., None], *arguments: Any, stack: ExitStack) -> None:
    """Start a server process and wait until it says that it is ready; it ends with the stack."""
    here, there = SPAWN.Pipe()
    server = SPAWN.Process(target=target, args=(*arguments, there))
    server.start()
    stack.callback(server.kill)
    here.recv()


def memory_copy(size: int, stack: ExitStack) -> Callable[[], None]:
    del stack
    gradient, slot, out = torch.ones(size), torch.empty(size), torch.empty(size)

    def exchange() -> None:
        slot.copy_(gradient)
        out.copy_(slot)

    return exchange


def copy_of_two(size: int, stack: ExitStack) -> Callable[[], None]:
    """As `memory_copy`, but what comes back is another vector than what went, as it is in every exchange."""
    del stack
    gradient, slot, parameters, out = torch.ones(size), torch.empty(size), torch.zeros(size), torch.empty(size)

    def exchange() -> None:
        slot.copy_(gradient)
        out.copy_(parameters)

    return exchange


def serve_gloo(port: int, size: int, ready: Connection) -> None:
    torch.set_num_threads(1)
    ready.send(None)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2)
    slot, parameters = torch.empty(size), torch.zeros(size)
    while True:
        dist.recv(slot, 0)
        dist.send(parameters, 0)


def gloo(size: int, stack: ExitStack) -> Callable[[], None]:
    port = free_port()
    start_server(serve_gloo, port, size, stack=stack)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
    gradient, out = torch.ones(size), torch.empty(size)

    def exchange() -> None:
        dist.send(gradient, 1)
        dist.recv(out, 1)

    return exchange


def serve_echo(address: str, ready: Connection) -> None:
    """Send back what comes, with nothing around it: what a round trip costs on this machine whoever makes it."""
    selector = selectors.DefaultSelector()
    listener = listen(address)
    selector.register(listener, selectors.EVENT_READ)
    ready.send(None)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            peer = cast("socket.socket", key.fileobj)
            if message := peer.recv(ECHO_BYTES):
                peer.send(message)
            else:
                selector.unregister(peer)


class EchoWorker:
    """A client of `serve_echo`."""

    def __init__(self, address: str, rank: int, size: int) -> None:
        del rank, size
        self._socket = connect(address, 10.0)

    def decide(self) -> None:
        """One round trip of a message as long as a push."""
        self._socket.send(bytes(ECHO_BYTES))
        self._socket.recv(ECHO_BYTES)


class FlatModel(nn.Module):
    """One parameter; a model of many tensors would take rpc longer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(size))


class RpcServer:
    """The steps of the tutorial's server: add to the gradient, divide, step, zero, send the model back."""

    def __init__(self, size: int) -> None:
        self.model = FlatModel(size)
        self.lock = threading.Lock()
        self.answer: Future[FlatModel] = Future()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.model.weights.grad = torch.zeros(size)

    def update_and_fetch(self, gradients: list[Tensor]) -> "Future[FlatModel]":
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                assert parameter.grad is not None
                parameter.grad += gradient
                parameter.grad /= 1  # as many as workers
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            answer, self.answer = self.answer, Future()
            answer.set_result(self.model)
        return answer


RPC_SERVER: list[RpcServer] = []


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def rpc_update(gradients: list[Tensor]) -> "Future[FlatModel]":
    return RPC_SERVER[0].update_and_fetch(gradients)


def init_rpc(name: str, rank: int, port: int) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=60)
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        name, rank=rank, world_size=2, rpc_backend_options=options
    )


def serve_rpc(port: int, size: int, ready: Connection) -> None:
    RPC_SERVER.append(RpcServer(size))
    ready.send(None)
    init_rpc("server", 1, port)
    time.sleep(3600)  # rpc has its own threads; the parent ends this process


def torch_rpc(size: int, stack: ExitStack) -> Callable[[], None]:
    port = free_port()
    start_server(serve_rpc, port, size, stack=stack)
    init_rpc("worker", 0, port)
    gradient, out = torch.ones(size), torch.empty(size)

    def exchange() -> None:
        model = rpc.rpc_sync("server", rpc_update, args=([gradient],))
        out.copy_(model.weights.detach())

    return exchange


def ray_actor(tuned: bool) -> Opener:
    """As in Ray's example: gradients are stacked and summed, and a state dict comes back. Tuned: numpy both ways."""

    def open_worker(size: int, stack: ExitStack) -> Callable[[], None]:
        import ray

        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(num_cpus=1, object_store_memory=2**30, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)

        class Actor:
            """Imports for itself, because it runs where this file cannot be imported."""

            def __init__(self, size: int) -> None:
                import torch

                self.parameters = torch.zeros(size)
                self.optimizer = torch.optim.SGD([self.parameters], lr=1e-6)

            def update(self, *gradients: Any) -> Any:
                mean = gradients[0].copy() if tuned else np.stack(gradients).sum(axis=0)
                self.parameters.grad = torch.from_numpy(mean)
                self.optimizer.step()
                return self.parameters.numpy() if tuned else {"weights": self.parameters}

        actor: Any = ray.remote(Actor).remote(size)  # its methods appear at run time
        gradient, out = np.ones(size, np.float32), torch.empty(size)

        def exchange() -> None:
            answer = ray.get(actor.update.remote(gradient))
            out.copy_(torch.from_numpy(answer) if tuned else answer["weights"])

        return exchange

    return open_worker
