"""Hooks that show the progress of a training, and the last lines of a run."""

import logging
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from mm_ldlm.app.commands import COMMANDS
from mm_ldlm.app.follower import Follower, Lines, follower_of
from mm_ldlm.app.hooks import TIMINGS, command_of
from mm_ldlm.core import duration, show
from mm_ldlm.core.progress import QUIET_SECONDS
from mm_ldlm.evaluation.report import FEW_STEPS
from mm_ldlm.pipelines import MAIN, executed_by, partly
from mm_ldlm.training.checkpoints.reference import config_of, run_folder
from mm_ldlm.training.jsonl import number

log = logging.getLogger(__name__)

_SHOWN = frozenset(
    ("skip", "rollback", "checkpoint_failed", "ended_early", "resume_differs", "init_differs", "alert",
     "preview_failed", "best_unknown", "objective_warning")
)  # fmt: skip
"""Events that are shown as warnings"""
_LONGEST_SENTENCE = 160
AFTER_TRAINING = 0.2
"""Seconds of sampling, evaluation and reporting ÷ seconds of training in the base run, for a first run"""
_PAGES = {"report", "comparison_report", "score_card_report", "sts_scores", "audit_report"}
"""Outputs that contain the scores of others"""
_REQUESTS = {"l2t": "invert texts.txt --search", "unconditional": "generate 5"}
"""Commands for a finished run by the use that it must have; the first that fits is shown"""


class ProgressHooks:
    """Shows the progress of each training; at the end of a run scores and files, then the command that comes next."""

    def __init__(self) -> None:
        self._follower: Follower | None = None
        self._later: float | None = None  # seconds of the pipelines of the run that follow the training

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        executed, earlier = executed_by(pipeline), catalog.load(TIMINGS) if catalog.exists(TIMINGS) else {}
        later = [name for name in MAIN[MAIN.index("training") + 1 :] if name in executed]
        self._later = sum(earlier[name] for name in later) if earlier.keys() >= {*later} else None

    @hook_impl
    def before_node_run(self, inputs: dict[str, Any]) -> None:
        if {"training_spec", "runs"} <= inputs.keys():
            sink = ProgressSink(inputs["training_spec"]["training"]["max_steps"], later=self._later)
            self._follower = follower_of(inputs, sink)

    @hook_impl
    def after_node_run(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None

    @hook_impl
    def on_pipeline_error(self) -> None:
        self.after_node_run()

    @hook_impl
    def after_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        show_results(catalog, pipeline.all_outputs())
        executed = executed_by(pipeline)
        done = [name for name in MAIN if name in executed]
        if not done or partly(executed):
            return
        if later := MAIN[MAIN.index(done[-1]) + 1 :]:
            log.info("next: %s", command_of(run_params, later))
        else:
            show_request(catalog)


# -- during a training -------------------------------------------------------------------------------------------------


class ProgressSink:
    """Shows one line that is rewritten on a terminal, or a new line every minute elsewhere (files, CI).

    Args:
        later: seconds of the pipelines of the run that follow the training; None: unknown.
    """

    def __init__(self, max_steps: int, *, later: float | None = 0.0) -> None:
        self.max_steps, self.later = max_steps, later
        self._smooth: float | None = None
        self._last = 0.0
        self._open = False  # whether the terminal is in a line that will be rewritten

    def __call__(self, lines: Lines) -> None:
        for line in lines:
            if "event" in line:
                self._show_event(line)
            elif (loss := number(line.get("loss"))) is not None and not math.isnan(loss):
                self._smooth = loss if self._smooth is None else 0.9 * self._smooth + 0.1 * loss
        metrics = [line for line in lines if "event" not in line and "lr" in line]
        if metrics:
            self._show(metrics[-1])
        if not lines:
            self._end_line()

    def _end_line(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def _show(self, line: dict[str, Any]) -> None:
        text = progress_line(line, max_steps=self.max_steps, smoothed=self._smooth, later=self.later)
        if sys.stderr.isatty():
            print("\r\x1b[2K" + text, end="", file=sys.stderr, flush=True)
            self._open = True
        elif time.monotonic() - self._last >= QUIET_SECONDS or line["step"] >= self.max_steps:
            self._last = time.monotonic()
            log.info(text)

    def _show_event(self, line: dict[str, Any]) -> None:
        event = line["event"]
        words = {
            "start": f"continuing from checkpoint {line['resumed_from']}" if line.get("resumed_from") else "",
            "preview": sentence(line) if event == "preview" else "",
        }.get(event, "")
        if words or event in _SHOWN:
            self._end_line()
        if words:
            log.info(words)
        if event in _SHOWN:
            why = line.get("reason") or line.get("fields") or ""
            log.warning("step %s: %s %s", line["step"], event.replace("_", " "), why)


def progress_line(line: dict[str, Any], *, max_steps: int, smoothed: float | None, later: float | None = 0.0) -> str:
    """Format step, loss, smoothed loss, lr, gradient norm, tokens/s, remaining time of the run and skipped steps."""

    def shown(value: Any, form: str) -> str:
        value = number(value)
        return "–" if value is None or math.isnan(value) else format(value, form)

    left = number(line.get("seconds_left"))
    if left is not None:
        left += AFTER_TRAINING * (left + (number(line.get("seconds")) or 0.0)) if later is None else later
    return (
        f"step {line['step']}/{max_steps} · "
        f"loss {shown(line.get('loss'), '.4f')} (smoothed {shown(smoothed, '.4f')}) · "
        f"lr {shown(line.get('lr'), '.2e')} · grad {shown(line.get('grad_norm'), '.3f')} · "
        f"{shown(line.get('tokens_per_second'), ',.0f')} tokens/s · {'–' if left is None else duration(left)} left · "
        f"{shown(line.get('skipped'), '.0f')} skipped"
    )


def sentence(line: dict[str, Any]) -> str:
    """Format the event `preview`: a held-out sentence and its reconstruction, or a text from noise."""
    text = show(line["text"], _LONGEST_SENTENCE)
    if (original := line.get("original")) is None:
        return f"step {line['step']} writes from noise: {text}"
    same = " (exact)" if original == line["text"] else ""
    return f"step {line['step']} rebuilds {show(original, _LONGEST_SENTENCE)} → {text}{same}"


# -- at the end ------------------------------------------------------------------------------------------------------


def show_results(catalog: Any, saved: set[str]) -> None:
    """Log the scores, and the files of the last results."""
    load = catalog.load
    results = {name.removeprefix("metrics_"): load(name) for name in saved if name.startswith("metrics_")}
    if results:
        from mm_ldlm.evaluation.report.page import cards
        from mm_ldlm.evaluation.suites import flat_metrics

        for card in cards(flat_metrics(results, {})):
            interval = f" [{card['interval']}]" if card["interval"] else ""
            log.info("%-24s %s%s: %s", card["label"], card["value"], interval, card["note"])
    scored = {f"metrics_{name}" for name, found in results.items() if "skipped" not in found}
    found = dict.fromkeys(saved & _PAGES or scored, "")
    if not found:
        tables = {name: load(name) for name in saved if name.startswith("samples_")}
        found = {name: _mean_cosine(table) for name, table in tables.items() if len(table)}
    for name in sorted(found):
        log.info("%s: %s%s", name.replace("_", " "), found[name], getattr(catalog.get(name), "_filepath", None))


def show_request(catalog: Any) -> None:
    """Log a command that uses the run."""
    load = catalog.load
    if (steps := load("run")["step"]) < FEW_STEPS:
        log.info("a trial: after %d steps of training, scores and texts mean nothing yet", steps)
    able = load("params:objective").capabilities(load("params:model"))
    requests = _REQUESTS | {use: f"{use} texts.txt" for use in sorted(able.uses) if use in COMMANDS}
    from mm_ldlm.data.encoders import no_encoder

    reads = no_encoder(load("params:encoder")) is None
    if found := [use for use in requests if use in able and (reads or use == "unconditional")]:
        chosen = load("params:evaluation").checkpoint
        checkpoint = "" if chosen == "latest" else f" --checkpoint {chosen}"
        run = load("parameters").get("run") or run_folder(load("runs"), load("run"))
        length = (
            f" --length {config_of(run_folder(load('runs'), load('run')))['shape']['max_length']}"
            if able.length_refusal("sample", found[0], order="text_first")
            else ""
        )
        log.info("next: mm-ldlm %s --run %s%s%s", requests[found[0]], run, checkpoint, length)


def _mean_cosine(samples: Mapping[str, Any]) -> str:
    """Describe the mean cosine of a table of samples; an empty text if the table has none."""
    cosines = samples.get("cosine", ())
    return f"mean cosine {sum(cosines) / len(cosines):.3f} of {len(cosines)} in " if len(cosines) else ""
