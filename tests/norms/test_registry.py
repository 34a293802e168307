"""How a norm is registered and looked up, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch

from norm_plugin.declarations.option import NormDeclaration
from norm_plugin.declarations.reading import read_norms, read_placements
from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec, register_norm
from norm_plugin.norms.base import registry as registry
from norm_plugin.placements import PLACEMENTS, register_placement


def test_an_unknown_norm_lists_all():
    with pytest.raises(ValueError, match=r"unknown norm 'powrnorm'; choose from .*powernorm"):
        build_norm("powrnorm", 12)


def test_what_is_read_without_torch_is_what_the_registries_have():
    fields = [field.name for field in dataclasses.fields(NormDeclaration)]
    registered = [[getattr(norm_spec(name), key) for key in fields] for name in NORM_TYPES]
    read = [[getattr(norm, key) for key in fields] for norm in read_norms().values()]
    assert read == registered
    equations = {name: cls.equation for name, cls in PLACEMENTS.items()}
    assert list(read_placements().items()) == list(equations.items())


@pytest.mark.usefixtures("own_registry")
class TestRegistration:
    def test_a_new_norm_is_known_at_once(self):
        @register_norm("half", formula="x / 2", paper="none")
        class Half(Norm):
            """Half.

            Options:
                by: the divisor, explained
                    over two lines
            """

            def __init__(self, dim: int, *, by: float = 2.0) -> None:
                super().__init__(dim)
                self.by = by

            def normalize(self, x, valid):
                return x / self.by

        assert torch.equal(build_norm("half", 2, by="4")(torch.ones(2)), torch.full((2,), 0.25))
        (option,) = norm_spec("half").options
        assert option.help == "the divisor, explained over two lines"
        with pytest.raises(ValueError, match="registered twice"):
            register_norm("half", formula="", paper="")(Half)

    @pytest.mark.parametrize(
        ("kind", "doc", "message"),
        [
            (float, "", "explain option 'by'"),
            (bool, "x\n\nOptions:\n    by: b\n", "a flag can be int, float, str"),
        ],
    )
    def test_a_bad_declaration_is_refused(self, kind, doc, message):
        class Bad(Norm):
            def __init__(self, dim: int, *, by: float = 2.0) -> None:
                super().__init__(dim)

        Bad.__init__.__annotations__["by"] = kind
        Bad.__doc__ = doc
        with pytest.raises(ValueError, match=message):
            register_norm("bad", formula="", paper="")(Bad)

    @pytest.mark.parametrize("option", ["type", "placement", "init", "type_encoder"])
    def test_an_option_with_the_name_of_another_flag_is_refused(self, option):
        class Clash(Norm):
            def __init__(self, dim: int, **options: float) -> None:
                super().__init__(dim)

        parameter = inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=1.0)
        Clash.__init__.__signature__ = inspect.Signature([parameter])
        flag = f"--norm-{option.replace('_', '-')}"
        with pytest.raises(ValueError, match=f"option '{option}' would have the flag {flag}"):
            register_norm("clash", formula="", paper="")(Clash)

    @pytest.mark.parametrize("name", ["a norm", "", "-x", "a/b", "a=b", "a,b", "a.b", "a\n"])
    def test_a_name_that_no_flag_takes_is_refused(self, name):
        with pytest.raises(ValueError, match="use letters, digits, - and _"):
            register_norm(name, formula="", paper="")
        with pytest.raises(ValueError, match="use letters, digits, - and _"):
            register_placement(name, equation="", paper="")

    def test_one_word_has_one_type(self):
        class Clash(Norm):
            """Clash.

            Options:
                alpha_fwd: a string, where powernorm has a float
            """

            def __init__(self, dim: int, *, alpha_fwd: str = "") -> None:
                super().__init__(dim)

        with pytest.raises(ValueError, match="'alpha_fwd' is str in norm 'clash' but float in"):
            register_norm("clash", formula="", paper="")(Clash)


@pytest.mark.parametrize("name", NORM_TYPES)
def test_a_norm_shows_every_option(name):
    spec = norm_spec(name)
    shown = str(build_norm(name, 8))
    for option in spec.options:
        assert f"{option.name}={option.default}" in shown
    assert shown.startswith(f"{spec.cls.__name__}(8")
