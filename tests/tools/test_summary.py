"""The tables of docs/findings.md."""

from __future__ import annotations

from pathlib import Path

from questions import MAIN_CLAIMS, NORMS, RATES, TASKS
from summary import costs_table, highest_rates, main_claims, norm_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def cells_of(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table in Markdown, by the first one."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {first.strip("`"): rest for first, *rest in rows}


def test_a_cell_is_the_difference_to_layernorm_and_bold_if_decided():
    table = cells_of(norm_table(RESULTS))
    translation, fair, *_ = zip(table["layernorm"], table["batchnorm"], table["none"])
    assert translation == ("35.30<br>± 0.51<br>n = 5", "+0.84<br>-0.03 to +1.71<br>n = 5", "")
    assert fair == (
        "1.683<br>± 0.013<br>n = 6",
        "",
        "**+0.027**<br>+0.008 to +0.045<br>n = 6",
    )
    sst5 = table["layernorm-simple"][-2]
    assert sst5 == "**-0.04** † ‡<br>-0.12 to +0.04<br>n = 10<br>within 0.3"


def test_the_table_has_every_norm_of_a_task_and_as_many_rows_as_wanted():
    assert {norm for task in TASKS for norm in task.cells} < set(NORMS)
    assert list(cells_of(norm_table(RESULTS, 2))) == ["norm", "---", "layernorm", "rmsnorm"]


def test_the_highest_rate_is_one_at_which_the_loss_stays_low():
    fair = highest_rates(RATES["characters"], RESULTS)
    # 0.032, the highest rate tried, has 1.6 times the lowest loss; without norms 0.008 diverges
    assert fair == {
        "layernorm": "0.016",
        "rmsnorm": "0.016",
        "powernorm": "0.016",
        "none": "0.004",
    }
    assert highest_rates("tensorized_small", RESULTS)["batchnorm"] == ">= 0.008"


def test_what_was_not_measured_is_an_empty_cell():
    costs = cells_of(costs_table(ROOT))
    assert costs["dyt"][:2] == ["", ""] and costs["dyt"][2]
    assert costs["norm"][3] == "updates/s, GPU" and costs["powernorm"][3] and not costs["dyt"][3]


def test_a_main_claim_is_a_row_of_the_papers_with_a_page():
    _, _, first, *rest = main_claims(RESULTS).splitlines()
    assert "each at its own rate: +0.84 (-0.03 to +1.71), n = 5" in first
    assert len(rest) == len(MAIN_CLAIMS) - 1
    for _, _, page in MAIN_CLAIMS:
        assert (ROOT / "docs" / f"{page}.md").is_file()
