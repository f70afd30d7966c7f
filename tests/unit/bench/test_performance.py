"""What becomes of the figures of `make bench-all`: which rounds count, and what the page says of them."""

from pathlib import Path

import pytest
from bench import performance
from bench.peers.measuring import Figures
from bench.peers.report import Comparison, Results

PRODUCE = "produce/1024B/acks=1/batch=16384/none"


def figures(rate: float, others: float = 0.02) -> Figures:
    return {"MiB_per_s": rate, "cpu_s_per_GiB": 8.0, "others_busy_share": others}


def test_a_round_counts_when_both_runs_were_calm() -> None:
    found = Comparison(PRODUCE, 1, busy=0.1)
    found.runs["kafka"] += [figures(90), figures(10), figures(20, others=0.5), "TimeoutError: not done"]
    found.runs["headrace"] += [figures(99), figures(10, others=0.2), figures(20), figures(20)]
    assert found.calm_rounds == 1
    assert [row.ratio for row in found.rows()] == [1.1, 1.0]
    assert [row.met for row in found.rows()] == [True, False]
    assert not found.rows()[0].disturbed


def test_without_a_calm_round_all_figures_are_shown_and_marked() -> None:
    found = Comparison(PRODUCE, 1, busy=0.1)
    found.runs["kafka"] += [figures(90, others=0.3)]
    found.runs["headrace"] += [figures(99, others=0.3)]
    assert found.rows()[0].disturbed
    assert found.rows()[0].kafka == [90]


def test_the_page_is_written_between_its_marks_from_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{performance.BEGIN}old\n{performance.END}after\n")
    monkeypatch.setattr(performance, "PAGE", page)
    monkeypatch.setattr(Results, "draw", lambda self, folder: None)
    found, missing = Comparison(PRODUCE, 1, busy=0.1), Comparison("start", 1, busy=0.1)
    found.runs["kafka"].append(figures(90))
    found.runs["headrace"].append(figures(99))
    Results(1, 0.6, {"cpu": "a chip"}, [found, missing]).save(tmp_path)
    performance.write_page(tmp_path, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert f"| {PRODUCE} | MiB_per_s | 90 (90..90) | 99 (99..99) | 1.10 | ≥ 1 | met |" in text
    assert "1 of 2 targets are met" in text
    assert (tmp_path / "page" / "results-1.json").exists()
