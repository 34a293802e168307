"""Count the kernels that a GPU would launch.

with CountLaunches() as launches:
    norm(x).backward(dy)
print(launches.total, launches.triton, launches.torch, launches.synchronizing)
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LAUNCHES: list[str] = []
"""The names of Triton's kernels that were launched on the fake GPU, in order."""


class CountLaunches(TorchDispatchMode):
    """Counts the kernels that a GPU would launch, while it is active.

    Attributes:
        triton: the launched kernels of Triton, by name, once the block is left.
        torch: the operations of torch that launch kernels, by name: all but views and allocations.
            One ``_foreach`` operation is one, though it may launch a few kernels.
        synchronizing: the number of those that wait for the device, as ``item`` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.torch: Counter[str] = Counter()
        self.triton: Counter[str] = Counter()
        self.synchronizing = 0

    @property
    def total(self) -> int:
        """Return the number of launches."""
        return self.torch.total() + self.triton.total()

    def __enter__(self) -> Self:
        """Begin to count."""
        self._before = len(LAUNCHES)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End to count."""
        super().__exit__(*error)
        self.triton += Counter(LAUNCHES[self._before :])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count one operation, and run it."""
        result = func(*args, **kwargs or {})
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            self.synchronizing += 1
        # promote_types, for one, computes on the host; an operation in place may return None
        elif not (func.is_view or isinstance(result, torch.dtype | bool | int | float)):
            self.torch[name] += name != "_unsafe_view" and "empty" not in name
        return result
