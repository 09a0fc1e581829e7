"""snug from Python: plans and trains by the program `snug`, which it starts.

    plan = snug.plan(model="SmolLM2", data="chats.jsonl")
    print(plan.fits, plan.device_bytes)

    run = snug.train("run", model="SmolLM2", data="chats.jsonl", max_steps=100)
    for step in run:
        print(step.step, step.loss)
    print(run.result.trained)

Options are those of the job file (`snug train --help`), by their names there. A boolean, a number, a text or a path is
written as the command line has it, a list by its items, a dict by `key=value`; what is None is left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Iterator, Mapping, TypeVar

__all__ = ["Error", "PROGRAM", "Plan", "Result", "Step", "Training", "plan", "train"]

# The program that is started. It may be set to another build of snug, such as one for GPUs.
PROGRAM: str | os.PathLike[str] = Path(__file__).parent / "program" / "snug"

_DOES_NOT_FIT = 3
_INTERRUPTED = 130
_POLL_SECONDS = 0.05


class Error(Exception):
    """What the program said when it failed, and its exit code: 1 a mistake of snug's, 2 options, files or data are not
    as they should be, 3 it does not fit, 4 the machine failed, 130 interrupted; negative, the signal that ended it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Plan:
    """What `snug plan --json` says; `json` has all of it. Bytes are a rank's for the device, a node's else."""

    fits: bool
    reason: str | None  # why it does not fit
    arrangement: dict[str, Any]
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    driver_bytes: int
    phases: dict[str, int]  # bytes by phase
    classes: dict[str, int]  # bytes of the fullest moment, by what they hold
    parameters: int
    trainable_parameters: int
    tokens_per_step: int
    samples_per_epoch: int
    steps_per_epoch: int
    step_seconds: float | None  # as forecast by a machine's profile
    notes: list[str]  # lines beside the plan
    json: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A step that was taken: a line of metrics.jsonl; `json` has all of it, also an objective's numbers."""

    step: int
    loss: float | None  # None if it is not finite, as is the norm
    grad_norm: float | None
    learning_rate: float
    tokens: int
    loss_tokens: int
    step_seconds: float
    tokens_per_second: float
    device_bytes: int
    host_bytes: int
    eval_loss: float | None  # of a step after which held-out data was evaluated
    json: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run came to; `json` has all that `snug train --json` says."""

    out: Path  # the run's directory
    trained: Path | None  # adapter or model; None if the run was interrupted before its first step
    steps: int
    loss: float | None  # of the last step
    best_step: int | None
    interrupted: bool
    json: dict[str, Any]


_Record = TypeVar("_Record", Plan, Step, Result)


def _record(kind: type[_Record], found: Mapping[str, Any], **more: Any) -> _Record:
    """Returns a record of the fields that `found` has; those that may be missing there are None."""
    known = {field.name: found.get(field.name) for field in fields(kind)}
    return kind(**{**known, "json": dict(found), **more})


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return _text([f"{key}={_text(item)}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return ",".join(_text(item).replace("\\", "\\\\").replace(",", "\\,") for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _command(name: str, options: Mapping[str, Any]) -> list[str]:
    flags = [f"--{key.replace('_', '-')}={_text(value)}" for key, value in options.items() if value is not None]
    return [os.fspath(PROGRAM), name, "--json", *flags]


def _error(lines: list[str], exit_code: int) -> Error:
    own = [line[len("snug: ") :] for line in lines if line.startswith("snug: ")]
    own += [event["message"] for event in map(_event, lines) if event.get("event") == "error"]
    message = own[-1] if own else lines[-1] if lines else f"snug ended with exit code {exit_code} and said nothing"
    return Error(message, exit_code)


def _event(line: str) -> dict[str, Any]:
    """Returns the event of a line of a log in JSON, and an empty one for other lines."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def plan(**options: Any) -> Plan:
    """Plans a job without running it. A job that does not fit has a plan too, with `fits` False and the reason."""
    ended = subprocess.run(
        _command("plan", options), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    notes = ended.stderr.splitlines()
    if ended.returncode not in (0, _DOES_NOT_FIT) or not ended.stdout:
        raise _error(notes, ended.returncode)
    return _record(Plan, json.loads(ended.stdout), notes=notes)


def train(out: str | os.PathLike[str], **options: Any) -> Training:
    """Starts a run in the directory `out`, which the object that is returned follows."""
    return Training(Path(out), {"out": out, **options})


class Training(Iterator[Step]):
    """A run: an iterator over its steps as they are taken, which raises Error where the run fails. After the last step
    `result` is there. The run goes on whether or not somebody iterates; a `with` statement that is left stops it."""

    def __init__(self, out: Path, options: Mapping[str, Any]) -> None:
        self.notes: list[str] = []  # lines that the program has said so far
        self.result: Result | None = None
        self._lines = _NewLines(out / "metrics.jsonl")
        self._process = subprocess.Popen(
            _command("train", options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        self._said: list[str] = []
        self._readers = [
            threading.Thread(target=_gather, args=(stream, lines), daemon=True)
            for stream, lines in ((self._process.stdout, self._said), (self._process.stderr, self.notes))
        ]
        for reader in self._readers:
            reader.start()

    def __iter__(self) -> Training:
        return self

    def __next__(self) -> Step:
        while True:
            ended = self._process.poll() is not None  # before it looks for what was written until then
            line = self._lines.next()
            if line is not None:
                return _record(Step, json.loads(line))
            if ended:
                self._end()
                raise StopIteration
            time.sleep(_POLL_SECONDS)

    def wait(self) -> Result:
        """Waits for the end of the run, and returns its result."""
        self._process.wait()
        return self._end()

    def stop(self) -> None:
        """Asks the run to end after the step under way, with everything saved, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._process.wait()

    def _end(self) -> Result:
        """Reads what the process, which has ended, has said of the run."""
        if self.result:
            return self.result
        for reader in self._readers:
            reader.join()
        code = self._process.returncode
        if code not in (0, _INTERRUPTED) or not self._said:
            raise _error(self.notes, code)
        said = json.loads("".join(self._said))
        trained = said.get("adapter", said.get("model"))
        self.result = _record(
            Result,
            said,
            out=Path(said["out"]),
            trained=Path(trained) if trained else None,
            interrupted=code == _INTERRUPTED,
        )
        return self.result


def _gather(stream: IO[str], lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))


class _NewLines:
    """Reads a file that a run writes anew, maybe with lines that a run before it wrote, and then only adds lines to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # of the next line, once the file is this run's
        self._before = set(path.read_bytes().splitlines(keepends=True)) if path.exists() else set()

    def next(self) -> bytes | None:
        """Returns the next line that was not in the file before; None if there is none yet."""
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while (line := file.readline()).endswith(b"\n"):
                if line not in self._before:
                    self._before.clear()
                    self._offset = file.tell()
                    return line
        return None
