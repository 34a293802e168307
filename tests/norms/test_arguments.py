"""The flags of the norms for a training script of one's own."""

from __future__ import annotations

import argparse

import pytest

from norm_plugin.norms import NORM_TYPES, add_norm_arguments, build_norm, norm_options, norm_spec


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    add_norm_arguments(parser)
    return parser


@pytest.mark.parametrize("name", NORM_TYPES)
def test_every_option_has_a_flag(parser, name):
    argv = ["--norm-type", name]
    for option in norm_spec(name).options:
        argv += [f"--norm-{option.name.replace('_', '-')}", str(option.default)]
    args = parser.parse_args(argv)
    assert args.norm_type == name
    assert norm_options(args) == {option.name: option.default for option in norm_spec(name).options}


def test_the_command_line_wins_over_defaults(parser):
    defaults = {"adanorm": {"scale": 1.0}}
    args = parser.parse_args(["--norm-type", "adanorm"])
    assert norm_options(args, defaults) == {"scale": 1.0}
    args = parser.parse_args(["--norm-type", "adanorm", "--norm-scale", "0.3"])
    assert build_norm(args.norm_type, 8, **norm_options(args, defaults)).scale == 0.3
    assert norm_options(parser.parse_args([]), defaults) == {}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--norm-scale", "2"], "norm 'layernorm' has no option 'scale'"),
        (["--norm-eps", "x"], "eps is 'x'; it must be of type float"),
    ],
)
def test_wrong_options(parser, argv, message):
    with pytest.raises(ValueError, match=message):
        norm_options(parser.parse_args(argv))
