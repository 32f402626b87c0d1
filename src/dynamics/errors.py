"""Errors of the package; each message says what was expected, what came, and what to do."""


class DynamicsError(Exception):
    """Base of every error that this package raises on purpose."""


class ScheduleError(DynamicsError, ValueError):
    """A schedule was described in a way that names no steps."""


class TaskError(DynamicsError, ValueError):
    """A task or its data module was asked for data that cannot exist."""


class ModelError(DynamicsError, ValueError):
    """A model was configured, or fed, in a way it cannot work with."""


class ProbeError(DynamicsError, ValueError):
    """The probe is missing, empty, or cannot be scored."""


class ComponentError(DynamicsError, ValueError):
    """The components of a model could not be found or do not fit it."""


class MeasurementError(DynamicsError, RuntimeError):
    """A measurement found nothing to act on, or was asked for something unknown."""


class RunFileError(DynamicsError, OSError):
    """A run file cannot be created, read or written."""


class RunFormatError(RunFileError):
    """A file is no run file, or of a format that this version cannot read: waiting does not help."""


class ConfigurationError(DynamicsError, ValueError):
    """The training set-up cannot be tracked as asked."""


class AnalysisError(DynamicsError, ValueError):
    """An analysis was asked for something that its input cannot answer."""


class NothingYetError(AnalysisError):
    """A run has no rows for what was asked; one that still grows may have them later."""


class PlotError(DynamicsError, ValueError):
    """A picture cannot be written where, or as what, it was asked for."""


class ReportError(DynamicsError, ValueError):
    """A report cannot be written where, or as what, it was asked for."""
