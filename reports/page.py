"""What a note is about and where it lies, so that its links hold."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from reports.arms import Experiment
from reports.kernels import KERNELS_NAME
from reports.markdown import image, link
from reports.power_document import SAMPLES_NAME
from reports.story import Story


@dataclass(frozen=True, slots=True)
class Page:
    """An experiment, its story, and the two places of its note: the text and the figures."""

    experiment: Experiment
    story: Story
    output: Path
    figures_dir: Path

    @property
    def rates(self) -> Path:
        """The figure of all windows, without its suffix."""
        return self._stem("rates")

    @property
    def effects(self) -> Path | None:
        """The figure of the effects, without its suffix; None where arms have nothing to be compared at."""
        experiment = self.experiment
        if experiment.document.anchor_rps is None or len(experiment.arms) == 1:
            return None
        return self._stem("effects")

    @property
    def kernels(self) -> Path | None:
        """The figure of the kernels' changes, without its suffix; None where kernels were not timed."""
        is_there = any((arm.directory / KERNELS_NAME).exists() for arm in self.experiment.arms)
        return self._stem("kernels") if is_there else None

    @property
    def power(self) -> Path | None:
        """The figure of power and clocks, without its suffix; None where no samples are kept."""
        is_there = any((arm.directory / SAMPLES_NAME).exists() for arm in self.experiment.arms)
        return self._stem("power") if is_there else None

    def _stem(self, name: str) -> Path:
        return self.figures_dir / f"{self.experiment.document.label}-{name}"

    def to(self, path: Path) -> str:
        """A path as it is reached from the page."""
        return Path(os.path.relpath(path, self.output.parent)).as_posix()

    def marked(self, text: str) -> str:
        """A heading or caption with the experiment's mark."""
        return f"{text} ({self.experiment.mark})" if self.experiment.mark else text

    def figure(self, stem: Path, words: str) -> str:
        """A figure with its caption; words: plain text."""
        svg, png = (self.to(stem.with_name(f"{stem.name}.{form}")) for form in ("svg", "png"))
        return f"{image(self.marked(words), svg)}\n\n{self.marked('Figure')}: {words} ({link('PNG', png)})."
