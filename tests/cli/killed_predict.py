"""`fedcopl predict` in a process that is killed as soon as its second batch of answers is written."""

import os
import signal

from fedcopl.classifier.prediction_file import _PredictionFile
from fedcopl.cli import main

append, batches = _PredictionFile.append, []


def append_and_be_killed(self, answers):
    append(self, answers)
    batches.append(answers)
    if len(batches) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


_PredictionFile.append = append_and_be_killed
main()
