import torch

from plugrl import hookimpl


@hookimpl
def plugrl_run_end(run, outcome):
    print(outcome, torch.__version__)
