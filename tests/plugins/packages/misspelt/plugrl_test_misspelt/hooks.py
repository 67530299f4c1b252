from plugrl import hookimpl


@hookimpl
def plugrl_run_edn(run, outcome):
    print(outcome)
