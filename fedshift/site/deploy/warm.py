"""Imported by the process from which a node's ClientApps are forked, and by no other: the app that is installed here.

That process never works on a message itself, so messages leave no traces for the next one; it has no key, connection or
thread, and has not used a GPU.
"""

import contextlib
from importlib import import_module
from pathlib import Path

import torch

from fedshift_app.flower import sources
from fedshift_app.node import own_code

own_code.installed()  # as it is before it is imported
sources.program("flwr-clientapp")
for name in ("httpcore", "torchvision", "fedshift_app.client_app"):
    import_module(name)
with contextlib.suppress(ImportError):  # of the networks of timm: each message would import it again
    import_module("timm")
import_module("fedshift_app.config.resolving").resolve({})  # builds its models, which each message would build again

if torch.cuda.is_initialized() or len(list(Path("/proc/self/task").iterdir())) > 1:  # type: ignore[no-untyped-call]
    raise RuntimeError("an import has opened the GPU, or begun a thread: neither survives a fork")
