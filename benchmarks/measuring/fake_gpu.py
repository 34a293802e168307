"""A GPU that computes nothing, to measure and count what the host does, without a device.

``install`` lets norms of tensors on the CPU launch their Triton kernels, as on a GPU: Triton's
front end runs, the kernels are compiled for Hopper, and a launch adds their name to ``LAUNCHES``.
What a kernel would have written is not defined afterwards. torch's own operations run on the CPU;
where tensors are small, their time is that of the host.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from measuring.launches import LAUNCHES

HOPPER = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS = 132  # of an H100 and an H200; they decide the numbers of programs
PROPERTIES = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": MULTIPROCESSORS,
    "warpSize": 32,
}


class Utils:
    """What a compiled kernel asks the driver when it is loaded."""

    def load_binary(self, *args: Any) -> tuple[int, ...]:
        """Return module, function, registers, spills and threads per block of a kernel."""
        return 0, 0, 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return the facts of the device that limit a kernel."""
        return PROPERTIES


class Launcher:
    """Launches one compiled kernel, by recording its name."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name = metadata["name"] if isinstance(metadata, dict) else metadata.name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        LAUNCHES.append(self.name)


class Driver(DriverBase):
    """The functions of a driver that Triton's front end calls."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = Utils(), Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        """Raise NotImplementedError: without a device there is nothing to time."""
        raise NotImplementedError("this device computes nothing, so kernels cannot be timed")

    def map_python_to_cpp_type(self, name: str) -> str:
        """Return the type of an argument in C++; no launcher in C++ is built."""
        return "void*"

    @staticmethod
    def is_active() -> bool:
        return True


def install() -> None:
    """Let norms of tensors on the CPU launch Triton kernels, in this process from now on.

    Raises:
        RuntimeError: Triton interprets kernels instead (``TRITON_INTERPRET``), or they are loaded.
    """
    from norm_plugin.kernels import choice
    from norm_plugin.kernels.triton import loading, tiles

    if triton.knobs.runtime.interpret or loading.load.cache_info().currsize:
        raise RuntimeError("install() comes before any use of Triton, without TRITON_INTERPRET")
    driver.set_active(Driver())
    tiles.INTERPRETED_MULTIPROCESSORS = MULTIPROCESSORS
    vars(tiles)["supports_device"] = lambda device: True
    choice.DEVICES["cpu"] = "triton"
