"""Run the sessions of a comparison, each a `kedro run` in a separate process, so that a crash ends only one member.

Each session has a folder, in which `session.json` records how it ended, and with which parameters. A session that has
finished with the same parameters and data is not repeated; an interrupted training continues.
"""

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_ldlm.core import MMLDLMError
from mm_ldlm.core.files import InputFile, recorded, write_json
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.store.manifest import NAME as MANIFEST
from mm_ldlm.distributed.entry import die_with_parent
from mm_ldlm.evaluation.report.inputs import record_of
from mm_ldlm.extras.comparison.plan import PIPELINES, Session, refuse_short_trainings
from mm_ldlm.training.checkpoints.reference import run_folder
from mm_ldlm.training.jsonl import number

log = logging.getLogger(__name__)

RECORD, LOG, OPTIONS = "session.json", "log.txt", "run.json"
LAST_LINES = 6
"""Number of last log lines that are reported as the reason of a failure"""
POLL_SECONDS = 0.2
QUIET_SECONDS = 60.0
"""Interval of the lines that report the running sessions"""
GRACE_SECONDS = 120.0
"""Time in which a session can write its checkpoint after it was asked to end"""

Command = Callable[[Path], Sequence[str]]
"""The file of a session's options → the command that runs it."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a session.

    Attributes:
        status: finished, or failed.
        reason: last lines of the log of a failed session; "" for a finished one.
        seconds: wall time of the session, all pipelines together.
    """

    member: str
    seed: int
    status: str
    reason: str
    seconds: float
    log: str


@dataclass
class _Running:
    session: Session
    process: subprocess.Popen[bytes]
    started: float
    writes: bool
    """Whether it writes the data, which other sessions share, and trains later"""


def kedro_run(options: Path) -> list[str]:
    """Return the command `kedro run` with the options of a file; by hand, it continues or repeats a session."""
    return [sys.executable, "-m", "kedro", "run", f"--config={options}"]


def run_sessions(
    sessions: Sequence[Session],
    *,
    jobs: int,
    parent_run: str | None,
    project: Path,
    conf_source: str,
    command: Command = kedro_run,
) -> list[Outcome]:
    """Run every session that is not finished yet, at most `jobs` at a time; return their outcomes in order.

    Data that a session does not find are written first, by a run of their pipelines alone: the members share their
    data, and no run reads them while another one that writes them has not ended.

    Args:
        parent_run: MLflow run that the runs of the sessions are nested in.
        project: the project's folder, in which the commands run.
        conf_source: folder of the configuration.
    """
    outcomes = {session.label: outcome for session in sessions if (outcome := finished_before(session)) is not None}
    waiting = [session for session in sessions if session.label not in outcomes]
    log.info("%d of %d sessions were finished before", len(outcomes), len(sessions))
    running, last = list[_Running](), time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                missing = _missing(waiting[0])
                if running and (missing or any(each.writes for each in running)):
                    break
                session, pipelines = waiting.pop(0), missing or PIPELINES
                file = _write_options(session, pipelines, parent_run=parent_run, conf_source=conf_source)
                log.info("%s: %s; log in %s", session.label, ", ".join(pipelines), log_of(session))
                running.append(_start(session, command(file), project, writes=bool(missing)))
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                if each.writes and each.process.returncode == 0 and not _missing(each.session):
                    waiting.insert(0, each.session)
                    refuse_short_trainings(sessions)
                else:
                    outcomes[each.session.label] = _end(each)
            if running and time.monotonic() - last > QUIET_SECONDS:
                last = time.monotonic()
                for each in running:
                    log.info("%s: running for %.0f s", each.session.label, last - each.started)
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        _stop(running)
    return [outcomes[session.label] for session in sessions]


def with_best_rates(
    sessions: Sequence[Session], run: Callable[[Sequence[Session]], Sequence[Outcome]]
) -> list[Session]:
    """Select the sessions of each member's best learning rate, after its first seed was run with every one of them.

    The best session has the lowest last validation NLL, which the results compare, or the lowest loss if the run gives
    no likelihood; the loss also has other terms, such as the length's, whose best rates differ. A session that
    failed or diverged is the worst.
    """
    first = {session.member: session.seed for session in reversed(sessions)}
    trials = [session for session in sessions if session.seed == first[session.member]]
    losses = {session.label: math.inf for session in trials}
    for session, outcome in zip(trials, run(trials), strict=True):
        if outcome.status == "finished":
            losses[session.label] = _validation_nll(session)
    best = {
        member: min((each for each in trials if each.member == member), key=lambda each: losses[each.label])
        for member in first
    }
    for member, session in best.items():
        log.info("%s: learning rate %g, validation NLL %.4f", member, session.learning_rate, losses[session.label])
    return [session for session in sessions if session.learning_rate == best[session.member].learning_rate]


def _validation_nll(session: Session) -> float:
    reference = InputFile(session.paths["run"], remedy="Run the session again.").json(dict)
    lines = record_of(run_folder(Path(session.paths["runs"]), reference)).log
    validated = (line for line in reversed(lines) if "validation/loss" in line)
    last = next((number(line.get("validation/nll", line["validation/loss"])) for line in validated), None)
    return last if last is not None and math.isfinite(last) else math.inf


# -- one session -------------------------------------------------------------------------------------------------------


def finished_before(session: Session) -> Outcome | None:
    """Return the outcome of a session that has finished with these parameters and data; None if it must run."""
    record = recorded(Path(session.folder) / RECORD) or {}
    same = (record.get("status"), record.get("fingerprint")) == ("finished", session.fingerprint)
    if not same or not all(Path(session.paths[name]).exists() for name in ("run", "metrics")):
        return None
    try:
        Dataset.open(session.paths["dataset"]).check()
    except MMLDLMError:  # the data changed since then
        return None
    return Outcome(session.member, session.seed, "finished", "", record["seconds"], str(log_of(session)))


def _missing(session: Session) -> list[str]:
    """List the pipelines, in their order, whose stores the session needs but that do not exist."""
    return [name for name, stores in session.stores.items() if not all((Path(s) / MANIFEST).is_file() for s in stores)]


def _write_options(session: Session, pipelines: Sequence[str], *, parent_run: str | None, conf_source: str) -> Path:
    options = {
        "env": session.environment,
        "pipelines": ",".join(pipelines),
        "params": {**session.params, "tracking": {**session.params["tracking"], "parent_run": parent_run}},
        "conf_source": conf_source,
    }
    write_json(file := Path(session.folder) / OPTIONS, {"run": options})
    return file


def _start(session: Session, command: Sequence[str], project: Path, *, writes: bool = False) -> _Running:
    _record(session, "running")
    with open(log_of(session), "wb") as output:
        # Own process group: Ctrl-C reaches this process, which then asks the sessions to end, once.
        process = subprocess.Popen(
            list(command), cwd=project, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
    return _Running(session, process, time.monotonic(), writes)


def _end(running: _Running) -> Outcome:
    session, seconds = running.session, round(time.monotonic() - running.started, 1)
    code = running.process.returncode
    reason = "" if code == 0 else _reason(log_of(session), code)
    status = "finished" if code == 0 else "failed"
    _record(session, status, reason=reason, seconds=seconds)
    level, more = (logging.WARNING, f"; the others continue. {reason}") if reason else (logging.INFO, "")
    log.log(level, "%s: %s after %.0f s%s", session.label, status, seconds, more)
    return Outcome(session.member, session.seed, status, reason, seconds, str(log_of(session)))


def _reason(file: Path, code: int) -> str:
    """Return the last lines of a log, from its last error on if there is one, and the exit code or the signal."""
    lines = [line.rstrip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ended = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    last = lines[-LAST_LINES:]
    begin = max((place for place, line in enumerate(last) if line.startswith("Error: ")), default=0)
    return "\n".join([*last[begin:], f"({ended})"])


def _record(session: Session, status: str, **more: Any) -> None:
    record = {"status": status, "member": session.member, "seed": session.seed, "fingerprint": session.fingerprint}
    write_json(Path(session.folder) / RECORD, {**record, **more})


def log_of(session: Session) -> Path:
    """Return the log of a session."""
    return Path(session.folder) / LOG


def _stop(running: Sequence[_Running]) -> None:
    """End the running sessions as Ctrl-C would; those that train write a checkpoint first."""
    for each in running:
        each.process.terminate()
    for each in running:
        try:
            each.process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        log.warning("%s: stopped; the same command continues it", each.session.label)
