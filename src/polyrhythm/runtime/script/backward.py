"""The backward passes of a script, which are listened to."""

import functools
from typing import Any

import torch

from polyrhythm.runtime.script.script import AdaptedScript


def patch_backward(script: AdaptedScript) -> None:
    """Through which `Tensor.backward` comes, too. A pass within a pass is checkpointing."""
    original = torch.autograd.backward
    inside = False

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if inside:
            original(*args, **kwargs)
            return
        roots = args[0] if args else kwargs.get("tensors", ())
        script.backward([roots] if isinstance(roots, torch.Tensor) else roots)
        inside = True
        try:
            original(*args, **kwargs)
        except RuntimeError as error:
            if script.session is not None:
                script.session.explain(error)
            raise
        finally:
            inside = False
        script.differentiated()

    torch.autograd.backward = backward
