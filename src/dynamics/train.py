"""Command line: ``python -m dynamics.train fit --config configs/sort.yaml``."""

from __future__ import annotations

import string
import sys
import warnings
from argparse import ArgumentError
from inspect import signature

import torch
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from dynamics.callbacks import GapTrackerCallback
from dynamics.errors import ConfigurationError, DynamicsError
from dynamics.model import SequenceModule
from dynamics.schedules import Schedule
from dynamics.tasks import SequenceDataModule

_NAME = set(string.ascii_letters + string.digits + "-_.")


class TrainCommand(LightningCLI):
    """Lightning's command line with a tracker, and one folder for all that a run writes."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``name`` and the tracker's settings; the files' places follow from the name."""
        parser.add_argument("--name", type=str, default="run", help="The run writes under runs/<name>/.")
        parser.add_argument(
            "--threads",
            type=int | None,
            default=None,
            help="CPU threads of PyTorch. Small models run fastest with 1; the last digits depend on it.",
        )
        parser.add_class_arguments(GapTrackerCallback, "tracker", skip={"probe", "components", "metadata"})
        # A default that is an object has no place in the configuration that is printed, and kept with the run.
        defaults = {name: given.default for name, given in signature(GapTrackerCallback).parameters.items()}
        schedules = {name: default for name, default in defaults.items() if isinstance(default, Schedule)}
        parser.set_defaults({f"tracker.{name}": schedule.to_config() for name, schedule in schedules.items()})
        parser.callback_keys.append("tracker")
        parser.link_arguments("name", "tracker.path", compute_fn=lambda name: f"runs/{name}/run.h5")
        parser.link_arguments("name", "trainer.default_root_dir", compute_fn=lambda name: f"runs/{name}")

    def before_instantiate_classes(self) -> None:
        """Check the name, and set the number of threads before anything is computed."""
        config = self.config.get(self.subcommand, self.config)
        if not config.name or not set(config.name) <= _NAME or config.name.startswith("."):
            raise ConfigurationError(
                f"--name is a folder's name of letters, digits, '-', '_' and '.', such as 'sort'; got {config.name!r}."
            )
        if config.threads is not None:
            if config.threads < 1:
                raise ConfigurationError(f"--threads must be at least 1; got {config.threads}.")
            torch.set_num_threads(config.threads)

    @property
    def tracker(self) -> GapTrackerCallback:
        """Return the tracker."""
        return next(c for c in self.trainer.callbacks if isinstance(c, GapTrackerCallback))  # type: ignore[attr-defined]

    def before_fit(self) -> None:
        """Keep the whole configuration, defaults included, with the run."""
        config = self.config.get(self.subcommand, self.config)
        self.tracker.metadata["config"] = self._parser(self.subcommand).dump(config, skip_none=False)

    def after_fit(self) -> None:
        """Say where the run file is and how to look at it."""
        if self.tracker.path.exists() and self.trainer.is_global_zero:
            print(f"\nrun file: {self.tracker.path}\nlook at it: python -m dynamics.plot {self.tracker.path}")


def main() -> int:
    """Run the command with the process's arguments.

    Returns:
        Exit status: 0, or 2 for a set-up that cannot work.
    """
    # Lightning's own use of functions that are about to go: nothing a user could mend.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    warnings.filterwarnings("ignore", message=r"(?s).*(skip_none|Jsonargparse)", category=DeprecationWarning)
    try:
        TrainCommand(
            SequenceModule,
            SequenceDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False, "prog": "python -m dynamics.train"},
        )
    except (DynamicsError, ArgumentError) as error:
        # A page of usage would bury the one line that helps.
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
