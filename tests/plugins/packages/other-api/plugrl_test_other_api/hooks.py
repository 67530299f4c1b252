from plugrl import hookimpl

PLUGRL_HOOK_API = 2


@hookimpl
def plugrl_run_end(run, outcome):
    print(outcome)
