from plugrl import HOOK_API, hookimpl

PLUGRL_HOOK_API = HOOK_API


@hookimpl
def plugrl_register_components(registry):
    def found_at_run_time(logp, batch, config):
        return -logp, {}

    registry.register("loss", "found_at_run_time", found_at_run_time)


@hookimpl
def plugrl_step_end(step):
    print(f"good saw step {step}")
