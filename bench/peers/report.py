"""Medians, spread and ratio of two sides, against the ratio we want; as lines of a table and as a plot."""

from __future__ import annotations

import fnmatch
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.peers.measuring import Figures

OTHERS = "others_busy_share"
HIDDEN = ("MiB", "server_cpu_s", OTHERS, "idle_side_share", "records_per_s", "rebalance_ms")


class Target(NamedTuple):
    """Which ratio of ours to Kafka's a figure should reach: at least (`more`) or at most."""

    job: str
    figure: str
    more: bool
    ratio: float
    ratio_of_three: float | None = None


TARGETS = (
    Target("produce/*", "MiB_per_s", True, 1.0),
    Target("produce/*", "cpu_s_per_GiB", False, 0.8, 1.0),
    Target("consume/*", "MiB_per_s", True, 1.0),
    Target("consume/*", "cpu_s_per_GiB", False, 1.0),
    Target("librdkafka/*", "*_MiB_per_s", True, 1.0),
    Target("librdkafka/*", "produce_cpu_s_per_GiB", False, 0.8, 1.0),
    Target("librdkafka/*", "consume_cpu_s_per_GiB", False, 1.0),
    Target("latency/paced/*", "p50_ms", False, 1.0),
    Target("latency/paced/*", "p99_ms", False, 1.0),
    Target("memory/*", "broker_rss_MiB", False, 0.2),
    Target("produce/*", "broker_rss_MiB", False, 0.2),
    Target("start", "*_s", False, 0.25),
    Target("failover", "next_ack_s", False, 1.0),
    Target("partitions/*", "all_written_s", False, 1.0),
    Target("connections/*", "requests_per_s", True, 1.0),
)


@dataclass(frozen=True)
class Row:
    """One figure of one job on both sides."""

    job: str
    figure: str
    kafka: list[float]
    headrace: list[float]
    target: Target | None
    brokers: int
    disturbed: bool

    @property
    def ratio(self) -> float | None:
        if not self.kafka or not self.headrace or not statistics.median(self.kafka):
            return None
        return statistics.median(self.headrace) / statistics.median(self.kafka)

    @property
    def wanted(self) -> float | None:
        if self.target is None:
            return None
        three = self.target.ratio_of_three
        return three if self.brokers == 3 and three is not None else self.target.ratio

    @property
    def met(self) -> bool | None:
        """Whether the target is met; nothing when there is none."""
        if self.target is None or self.wanted is None:
            return None
        if self.ratio is None:
            return False
        return self.ratio >= self.wanted if self.target.more else self.ratio <= self.wanted


@dataclass(frozen=True)
class Comparison:
    """All runs of one job on both sides; those at the same place of their lists make a round."""

    job: str
    brokers: int
    busy: float
    runs: dict[str, list[Figures | str]] = field(default_factory=lambda: {"kafka": [], "headrace": []})

    def failures(self) -> list[str]:
        return [
            f"{self.job:44} {side} failed: {run}"
            for side, runs in self.runs.items()
            for run in runs
            if isinstance(run, str)
        ]

    @property
    def calm(self) -> list[tuple[Figures, Figures]]:
        """The rounds that count: both runs have figures, and others left the machine alone."""
        return [
            (kafka, headrace)
            for kafka, headrace in zip(self.runs["kafka"], self.runs["headrace"], strict=False)
            if not isinstance(kafka, str)
            and not isinstance(headrace, str)
            and max(kafka.get(OTHERS, 0.0), headrace.get(OTHERS, 0.0)) <= self.busy
        ]

    @property
    def calm_rounds(self) -> int:
        return len(self.calm)

    @property
    def last_is_disturbed(self) -> bool:
        last = [runs[-1] for runs in self.runs.values() if runs]
        return any(not isinstance(run, str) and run.get(OTHERS, 0.0) > self.busy for run in last)

    def counted(self) -> dict[str, list[Figures]]:
        """The runs of the calm rounds; all that have figures when no round was calm."""
        if self.calm:
            return {"kafka": [kafka for kafka, _ in self.calm], "headrace": [headrace for _, headrace in self.calm]}
        return {side: [run for run in runs if not isinstance(run, str)] for side, runs in self.runs.items()}

    def rows(self) -> list[Row]:
        good = self.counted()
        names = [name for name in (good["kafka"] or good["headrace"] or [{}])[0] if name not in HIDDEN]
        rows = []
        for name in names:
            values = {side: [run[name] for run in runs if name in run] for side, runs in good.items()}
            target = next(
                (t for t in TARGETS if fnmatch.fnmatch(self.job, t.job) and fnmatch.fnmatch(name, t.figure)), None
            )
            rows.append(Row(self.job, name, values["kafka"], values["headrace"], target, self.brokers, not self.calm))
        return rows

    def as_json(self) -> dict[str, object]:
        ratios = {row.figure: {"ratio": row.ratio, "wanted": row.wanted, "met": row.met} for row in self.rows()}
        return {"job": self.job, "calm_rounds": self.calm_rounds, "runs": self.runs, "ratios": ratios}


@dataclass(frozen=True)
class Results:
    """One comparison of both sides, and where it was made."""

    brokers: int
    scale: float
    machine: dict[str, object]
    jobs: list[Comparison]

    @classmethod
    def load(cls, path: Path) -> Results:
        found = json.loads(path.read_text())
        brokers = found["brokers"]
        jobs = [Comparison(each["job"], brokers, found["busy"], each["runs"]) for each in found["jobs"]]
        return cls(brokers, found["scale"], found["machine"], jobs)

    def rows(self) -> list[Row]:
        return [row for found in self.jobs for row in found.rows()]

    def failures(self) -> list[str]:
        return [text for found in self.jobs for text in found.failures()]

    def save(self, folder: Path) -> None:
        shape = {"brokers": self.brokers, "scale": self.scale, "busy": self.jobs[0].busy, "machine": self.machine}
        text = json.dumps({**shape, "jobs": [found.as_json() for found in self.jobs]}, indent=1)
        (folder / f"results-{self.brokers}.json").write_text(text + "\n")

    def draw(self, folder: Path) -> None:
        draw(self.rows(), folder / f"ratios-{self.brokers}.svg")


def heading() -> str:
    cells = f"{'job':44} {'figure':22} {'kafka':>22} {'headrace':>22} {'ratio':>7} {'target':>8}"
    return f"{cells}\n{'-' * len(cells)}"


def line(row: Row) -> str:
    """Median and (min..max) of each side, the ratio and what it should be."""
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    target = ""
    if row.target is not None:
        verdict = "ok" if row.met else "MISS"
        target = f"{'≥' if row.target.more else '≤'} {row.wanted:g} {verdict}"
    mark = "!" if row.disturbed else " "
    return f"{row.job:44} {row.figure:22} {cell(row.kafka):>22} {cell(row.headrace):>22} {ratio:>7}{mark} {target}"


def cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.4g} ({min(values):.3g}..{max(values):.3g})"


def draw(every: Sequence[Row], path: Path) -> None:
    """The ratios that have a target as bars; the line is the target."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = [row for row in every if row.target is not None and row.ratio is not None]
    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(9, 0.3 * len(rows) + 1.2), layout="constrained")
    for place, row in enumerate(reversed(rows)):
        assert row.ratio is not None
        assert row.wanted is not None
        axes.barh(place, row.ratio, color="tab:green" if row.met else "tab:red")
        axes.plot([row.wanted, row.wanted], [place - 0.4, place + 0.4], color="black")
    axes.set_yticks(range(len(rows)), [f"{row.job} {row.figure}" for row in reversed(rows)], fontsize=7)
    axes.set_xlabel("Headrace / Kafka (black: what it should be, at least or at most)")
    figure.savefig(path)
    pyplot.close(figure)
