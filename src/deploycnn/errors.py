"""Every error a user can meet.

DeployError                  one readable message: what was asked, what was found, what to do
|- RecipeError               a recipe, an option or a command line that cannot be meant
|- DataError                 images or labels that are missing, damaged or do not fit
|- ModelError                a model, checkpoint or ONNX file that is missing, damaged or does not fit
|  `- ExportError            a model that cannot be turned into a correct graph
|- TrainingError             training cannot go on (NaN, no images)
|- PrecisionError            a variant that cannot be made, or is wrong when made
|- BackendError              a compiler or runtime said no
|  |- Unavailable            it is not here: package, library, driver or device is missing
|  |- Unsupported            it is here but cannot hold this graph, precision or target
|  `- EvidenceError          it ran something else than what was asked for
|- WorkerError               a worker process crashed, hung or ate its memory
|- StoreError                cache or output folder: disk full, locked, not writable
`- RecordError               a record that is missing, damaged or of another schema

Foreign errors are translated where they enter: `raise BackendError(...) from error`.
A cell's failure is caught by the pipeline and becomes an outcome; anything else ends the
command with `exit_code` and the message, never with a traceback.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_NOTHING_TO_SHIP = 1  # `compare`: a regression
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3  # `compare` only
EXIT_INCOMPARABLE = 4  # `compare` only
EXIT_BAD_INPUT = 5
EXIT_ENVIRONMENT = 6
EXIT_NO_GPU = 7  # `gpu-check` only
EXIT_INTERRUPTED = 130


class DeployError(Exception):
    """One message in three parts.

    Args:
        asked: what was asked for and did not work, a full clause.
        found: what was found instead; "" where `asked` says it.
        remedy: what the reader can do about it.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, asked: str, *, found: str = "", remedy: str) -> None:
        self.asked = asked
        self.found = found
        self.remedy = remedy
        super().__init__(asked, found, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders by pickle; keyword-only arguments need help there.
        return (_rebuild, (type(self), self.asked, self.found, self.remedy))

    def __str__(self) -> str:
        lines = [self.asked]
        if self.found:
            lines.append(f"  found: {self.found}")
        lines.append(f"  do: {self.remedy}")
        return "\n".join(lines)

    @property
    def one_line(self) -> str:
        """The message on one line, for tables and outcomes."""
        return "; ".join(part for part in (self.asked, self.found, self.remedy) if part)


def _rebuild(kind: type[DeployError], asked: str, found: str, remedy: str) -> DeployError:
    return kind(asked, found=found, remedy=remedy)


class RecipeError(DeployError):
    """A recipe, an option or a command line that cannot be meant."""

    exit_code = EXIT_USAGE


class DataError(DeployError):
    """Images or labels that are missing, damaged or do not fit the model."""


class ModelError(DeployError):
    """A model, checkpoint or ONNX file that is missing, damaged or does not fit."""


class ExportError(ModelError):
    """A model that cannot be turned into a correct graph."""


class TrainingError(DeployError):
    """Training cannot go on."""


class PrecisionError(DeployError):
    """A variant that cannot be made, or is wrong when made."""


class BackendError(DeployError):
    """A compiler or runtime said no."""


class Unavailable(BackendError):
    """The compiler, its library, driver or device is not here."""

    exit_code = EXIT_ENVIRONMENT


class Unsupported(BackendError):
    """The compiler is here but cannot hold this graph, precision or target."""


class EvidenceError(BackendError):
    """What ran is not what was asked for."""


class WorkerError(DeployError):
    """A worker process crashed, hung or ate its memory."""


class StoreError(DeployError):
    """Cache or output folder: disk full, locked, not writable."""

    exit_code = EXIT_ENVIRONMENT


class RecordError(DeployError):
    """A record that is missing, damaged or of another schema."""
