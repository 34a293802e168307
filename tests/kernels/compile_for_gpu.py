"""Compile the kernels for a GPU that need not be there; prints a line for each.

What the interpreter accepts, Triton's compiler may refuse: names from outside of a kernel, types
that change in a loop, a branch that leaves a variable undefined. Run by test_triton_compiles.py
without TRITON_INTERPRET. A line: the kernel, its variant, the arguments that do not make a new
variant, and whether it reads 16 bytes of a row at once.
"""

from __future__ import annotations

from itertools import product

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from norm_plugin.kernels.triton import batch_statistics, columns, pointwise, rows, tiles

AMPERE = GPUTarget("cuda", 80, 32)
CHANNELS, GROUPS = 1024, 4
UNGATED = {"alpha_ptr": (None,), "b_ptr": (None,)}
ROW_OPTIONS = {
    **{"released": (False, True), "has_phi": (False, True), "one_gain": (False, True)},
    **UNGATED,
}
GATED = {"released": (False,), "has_phi": (False,), "one_gain": (False,), "mean_ptr": (None,)}
# A kernel, its groups, what its flags may be, and the tensors that may be absent together
KERNELS = [
    (rows.forward_kernel, GROUPS, ROW_OPTIONS, ["weight_ptr", "bias_ptr", "mean_ptr"]),
    (
        rows.backward_kernel,
        GROUPS,
        {**ROW_OPTIONS, "through_mean": (True,), "through_rstd": (True,)},
        ["weight_ptr", "partial_sums_ptr"],
    ),
    (rows.forward_kernel, 1, {**GATED, "bias_ptr": (None,)}, []),
    (rows.backward_kernel, 1, {**GATED, "through_mean": (False,), "through_rstd": (True,)}, []),
    (pointwise.forward_kernel, 0, {"erf": (False, True)}, ["shift_ptr"]),
    (pointwise.backward_kernel, 0, {"erf": (False, True)}, ["shift_ptr"]),
    (columns.moments_kernel, GROUPS, {"center": (False, True)}, ["valid_ptr", "rstd_ptr"]),
    (
        columns.map_kernel,
        GROUPS,
        {"compute_rstd": (False, True)},
        ["valid_ptr", "shift_ptr", "padding_value_ptr", "square_ptr", "partial_sums_ptr"],
    ),
    (tiles.add_programs_kernel, 0, {"width": (2048,)}, []),
    (columns.products_kernel, 0, {}, ["rstd_ptr", "valid_ptr", "shift_ptr"]),
    (
        columns.gradient_kernel,
        GROUPS,
        {},
        ["valid_ptr", "shift_ptr", "constant_ptr", "nu_ptr", "partial_sums_ptr"],
    ),
    (
        batch_statistics.finish_batch_kernel,
        0,
        {
            "center": (True,),
            "over_padding": (False, True),
            "penalty": ("variances", "deviations"),
            "per_token": (True,),
        },
        ["running_mean_ptr", "running_square_ptr", "eta_ptr"],
    ),
    (
        batch_statistics.finish_batch_gradient_kernel,
        0,
        {"kinds": (3,), "penalized": (False, True), "with_eta": (False, True)},
        ["nu_ptr"],
    ),
    (
        batch_statistics.finish_running_kernel,
        0,
        {"released": (False, True), "in_warmup": (False, True)},
        ["running_square_ptr"],
    ),
    (
        batch_statistics.finish_batch_gradient_kernel,
        0,
        {"kinds": (2,), "penalized": (False,), "with_eta": (False,)},
        [],
    ),
    (
        batch_statistics.finish_window_kernel,
        0,
        {
            "window": (4,),
            "geometric": (False, True),
            "in_warmup": (False, True),
            "outlier_skip": (True,),
        },
        [],
    ),
    (
        batch_statistics.finish_window_gradient_kernel,
        0,
        {"window": (4,), "in_warmup": (False, True)},
        ["psi_ptr"],
    ),
]


def kind_of(name, dtype):
    """The type of an argument, as a launch would find it."""
    if name in ("x_ptr", "dy_ptr", "y_ptr", "dx_ptr"):
        return f"*{dtype}"
    if name == "valid_ptr":
        return "*u8"
    if name == "ticket_ptr":
        return "*i32"
    if name == "filled_ptr":
        return "*i64"
    if name.endswith("_ptr"):
        return "*fp32"
    return "i32" if name in ("num_rows", "programs") else "fp32"


def compiled(kernel, groups, flags, absent, dtype):
    """The text of the kernel's machine code, in PTX."""
    sizes = tiles.tiling(CHANNELS, groups)
    blocks = {
        "BLOCK_M": sizes.block_m,
        "BLOCK_N": sizes.block_n,
        "BLOCK_P": 64,
        "BLOCK_C": CHANNELS,
    }
    fixed = {**sizes._asdict(), **blocks, **flags, **dict.fromkeys(absent)}
    names = kernel.arg_names
    kinds = {name: "constexpr" if name in fixed else kind_of(name, dtype) for name in names}
    values = {(place,): fixed[name] for place, name in enumerate(names) if name in fixed}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if kinds[name].startswith("*")
    }
    source = ASTSource(kernel, kinds, values, aligned)
    return triton.compile(source, target=AMPERE, options={"num_warps": sizes.num_warps}).asm["ptx"]


def main():
    for kernel, groups, options, optional in KERNELS:
        general = [p.name for p in kernel.params if p.do_not_specialize]
        variants = product(*options.values(), (False, True))
        for *values, whole in variants:
            if len(options) > 1 and sum(v is True for v in values) % 2 == whole:
                continue  # of three, each pair of values suffices: one flag decides one branch
            flags = dict(zip(options, values))
            absent, dtype = ((), "bf16") if whole else (optional, "fp32")
            ptx = compiled(kernel, groups, flags, absent, dtype)
            module = kernel.fn.__module__.rpartition(".")[2]
            variant = f"{dtype} {flags} {'without' if absent else 'with'} options"
            wide = "wide" if ".v4.b32" in ptx else "narrow"
            if "num_rows" not in kernel.arg_names:
                wide = "no rows"
            print(f"{module}.{kernel.fn.__name__}|{variant}|{','.join(general)}|{wide}")


if __name__ == "__main__":
    main()
