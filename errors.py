"""One exception class for each kind of mistake a user can make; every message says what was asked, what is supported
and how to change it."""


class Dsv41Error(Exception):
    """Base of all errors that are the input's fault, not the program's; the command line prints them in one line."""


class ConfigError(Dsv41Error):
    """A config outside the architecture: an unknown key, a missing key, or keys that contradict each other."""


class CheckpointError(Dsv41Error):
    """A checkpoint that does not hold what its config asks for: missing, unknown, mistyped or damaged tensors."""


class IRError(Dsv41Error):
    """A program that does not verify."""


class CompileError(Dsv41Error):
    """A program that cannot be lowered to the chosen target."""


class PlanError(Dsv41Error):
    """A plan that cannot be loaded here: damaged, of another format version, or for another target."""


class RequestError(Dsv41Error):
    """A request that the loaded plan cannot serve: token ids out of range, an empty or too long prompt."""


class StateError(Dsv41Error):
    """A forward whose cached state is not there: look-back ids, window rows, a compressor tail, unwritten pages."""
