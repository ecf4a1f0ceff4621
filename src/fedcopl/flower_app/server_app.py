"""Flower's ServerApp, for `flwr run`: a simulation or a real federation.

Its settings are those of `[tool.flwr.app.config]`; without `classes` it runs a simulation.
"""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..deployment.server.rounds import PreparedServer, serve
from ..report.run_page import write_report
from ..run.progress_reporter import ProgressReporter
from ..run.record import RoundRecord
from ..simulation.on_flower import simulate_on_grid
from . import read_run_settings

app = ServerApp()
_log = logging.getLogger("flwr")


class _LogReporter(ProgressReporter):
    """Writes the progress of a run to Flower's log, which `flwr log` shows."""

    def preparing(self, step: str) -> None:
        _log.info("%s", step)

    def note(self, note: str) -> None:
        _log.info("note: %s", note)

    def round_done(self, record: RoundRecord) -> None:
        _log.info("round %d: %d sites, loss %s", record.number, record.participants, record.loss)


@app.main()
def _main(grid: Grid, context: Context) -> None:
    plan, progress = read_run_settings(context.run_config), _LogReporter()
    if plan.classes_file is None:  # a simulation, whose clients know the classes of their data set
        resume, previous_run = plan.resume, plan.previous_run
        simulate_on_grid(grid, plan.config, plan.out, resume=resume, progress=progress, previous_run=previous_run)
    else:
        serve(grid, PreparedServer.prepare(plan), progress)
    write_report(plan.out)
