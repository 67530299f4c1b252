import time

from plugrl import hookimpl

time.sleep(1.5)


@hookimpl
def plugrl_run_end(run, outcome):
    print(outcome)
