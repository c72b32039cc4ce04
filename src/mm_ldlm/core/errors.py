"""Exception classes of all errors that this project raises deliberately.

Each message states what was expected, what was found (with numbers) and what to do. Catch `MMLDLMError` to catch all of
them; any other exception that escapes is a bug.
"""

LONGEST = 1200
"""Characters of one line of a message"""
MOST_LINES = 40
"""Lines of a message"""


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return the beginning and the end of a text that is too long."""
    return text if len(text) <= longest else f"{text[: longest // 2]} … {text[-longest // 2 :]}"


class MMLDLMError(Exception):
    """Base of all errors raised deliberately; the message is written for the user.

    The length of the message is limited here, because it may repeat data. Bytes of a path that are not UTF-8 are
    escaped, so that every terminal and log accepts the message.
    """

    def __str__(self) -> str:
        lines = super().__str__().encode("utf-8", "backslashreplace").decode("utf-8").split("\n")
        return "\n".join([shorten(line) for line in lines[:MOST_LINES]] + ["…"] * (len(lines) > MOST_LINES))


class ConfigurationError(MMLDLMError):
    """A parameter is unknown, ill-typed, out of range, or contradicts another one."""


class SourceError(MMLDLMError):
    """A source of text is missing, unreadable, empty, or contains too large a fraction of bad rows."""


class StoreError(MMLDLMError):
    """A store on disk is incomplete, damaged, or of another format version."""


class UnsafePathError(StoreError):
    """A name in a file, which should name another file of the same folder, leads out of it or is not a file name."""


class FingerprintError(StoreError):
    """An artifact was made from inputs (encoder, texts, tokenizer, parameters) that differ from the current ones."""


class EncoderError(MMLDLMError):
    """An encoder cannot be loaded, or its output does not match its spec."""


class ValidationError(MMLDLMError):
    """A data contract failed in the validation pipeline."""


class CheckpointError(MMLDLMError):
    """A checkpoint is missing, damaged, or belongs to another model."""


class FreezingError(MMLDLMError):
    """A frozen parameter would be trained, or a trainable one would not."""


class PreflightError(MMLDLMError):
    """The run cannot start on this machine as configured."""


class TrackingError(MMLDLMError):
    """The tracking store did not answer in time or refused; a run continues without it."""


class TrainingDiverged(MMLDLMError):
    """The guard stopped training after its last rollback; the message contains the diagnosis."""


class WorkerFailed(MMLDLMError):
    """A training or extraction process failed; the message contains the rank, the step, the cause and the log file.

    Attributes:
        error_class: class name of the exception that ended the rank that failed first. It is "" if no rank recorded an
            exception (after a signal, or when the hosts did not connect).
    """

    def __init__(self, message: str, *, error_class: str = "") -> None:
        super().__init__(message)
        self.error_class = error_class


class SamplingError(MMLDLMError):
    """A sampling request cannot be fulfilled."""


class EvaluationError(MMLDLMError):
    """An evaluation cannot be computed from its inputs."""


def purposeful(error: BaseException) -> MMLDLMError | None:
    """Find the error raised deliberately: `error` itself or a cause that Kedro wrapped; None if it is a defect."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, MMLDLMError):
            return link
        link = link.__cause__
    return None
