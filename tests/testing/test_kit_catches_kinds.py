"""The suites of all kinds fail on components that break a promise, and on no others.

Each component of ``broken_components`` breaks one; the table says which tests see it.
"""

import importlib
import os
import re

import forking
import kills
import pytest

from plugrl.core.plugins.kinds import KINDS
from plugrl.testing.plugin import option

#: By kind, for each component the tests that fail.
CAUGHT = {
    "parser": {
        "GoodParser": "",
        "DeafParser": "it_reads_what_it_is_for",
        "RaisingParser": "a_reply_may_end_anywhere any_reply_is_read",
        "SwallowingParser": "plain_words_stay_what_is_said",
        "RememberingParser": "equal_replies_are_read_alike",
        "SlowParser": "long_replies_take_no_longer_than_they_are",
        "SilentParser": "it_is_a_documented_component",
        "OptionsParser": (
            "a_reply_may_end_anywhere "
            "an_unknown_key_is_refused "
            "any_reply_is_read "
            "equal_replies_are_read_alike "
            "it_reads_what_it_is_for "
            "long_replies_take_no_longer_than_they_are "
            "plain_words_stay_what_is_said"
        ),
        "OnlyHereParser": "a_new_process_finds_the_same",
    },
    "data_map": {
        "good_map": "",
        "promptless_map": "a_row_becomes_problems",
        "changing_map": "it_leaves_the_row_as_it_was",
        "moody_map": "equal_rows_give_equal_problems",
        "sharing_map": "problems_share_nothing_that_can_be_changed",
        "keeping_map": "what_it_drops_is_dropped",
        "textual_map": (
            "a_row_becomes_problems "
            "data_can_name_it "
            "equal_rows_give_equal_problems "
            "problems_share_nothing_that_can_be_changed "
            "what_it_drops_is_dropped"
        ),
        "configured_map": "an_unknown_key_is_refused",
    },
    "advantage": {
        "good_advantage": "",
        "nan_advantage": (
            "one_trajectory_gets_a_finite_number rewards_that_are_all_equal_give_finite_numbers"
        ),
        "single_advantage": "one_trajectory_gets_a_finite_number",
        "counting_advantage": "invalid_trajectories_change_no_other",
        "placed_advantage": "the_order_of_trajectories_does_not_matter",
        "moody_advantage": (
            "equal_batches_get_equal_advantages "
            "invalid_trajectories_change_no_other "
            "padding_changes_nothing "
            "the_order_of_trajectories_does_not_matter"
        ),
        "writing_advantage": "it_leaves_the_batch_as_it_was",
        "padded_advantage": "padding_changes_nothing",
        "zero_advantage": "every_trajectory_gets_a_finite_number",
    },
    "loss": {
        "good_loss": "",
        "nan_loss": (
            "equal_batches_give_equal_numbers "
            "loss_gradient_and_metrics_are_finite "
            "micro_batches_add_up "
            "only_trained_tokens_have_a_gradient "
            "padding_changes_nothing "
            "what_is_not_trained_changes_nothing"
        ),
        "leaking_loss": ("only_trained_tokens_have_a_gradient what_is_not_trained_changes_nothing"),
        "unmasked_loss": "padding_changes_nothing what_is_not_trained_changes_nothing",
        "mixing_loss": "micro_batches_add_up",
        "moody_loss": (
            "equal_batches_give_equal_numbers "
            "micro_batches_add_up "
            "padding_changes_nothing "
            "what_is_not_trained_changes_nothing"
        ),
    },
    "body": {
        "GoodBody": "",
        "WideBody": (
            "any_number_of_leading_dimensions_may_come it_gives_as_many_features_as_it_says"
        ),
        "FlatBody": "any_number_of_leading_dimensions_may_come",
        "NormBody": "any_number_of_leading_dimensions_may_come observations_do_not_mix",
        "DropBody": (
            "any_number_of_leading_dimensions_may_come "
            "equal_observations_give_equal_features "
            "equal_seeds_draw_equal_weights "
            "its_state_is_all_that_it_is "
            "observations_do_not_mix"
        ),
        "EntropyBody": "equal_seeds_draw_equal_weights",
        "IdleBody": "everything_can_be_trained",
        "HidingBody": "its_state_is_all_that_it_is",
        "WritingBody": (
            "any_number_of_leading_dimensions_may_come "
            "equal_observations_give_equal_features "
            "equal_seeds_draw_equal_weights "
            "it_leaves_observations_as_they_were "
            "its_state_is_all_that_it_is "
            "observations_do_not_mix"
        ),
        "TakingBody": "what_does_not_fit_is_refused",
    },
    "protocol": {
        "GoodProtocol": "",
        "MuteProtocol": "every_round_has_a_speaker_who_sees",
        "PayingProtocol": "an_episode_that_has_ended_is_worth_no_more",
        "WorthlessProtocol": (
            "a_right_verdict_is_worth_more_to_the_verifier "
            "episodes_end_with_rewards_that_are_finite"
        ),
        "InvertedProtocol": "a_right_verdict_is_worth_more_to_the_verifier",
        "MixingProtocol": "episodes_do_not_mix",
        "MoodyProtocol": "episodes_do_not_mix equal_seeds_give_equal_episodes",
        "ChangingProtocol": "episodes_do_not_mix states_are_never_changed",
        "TolerantProtocol": "decisions_that_are_none_are_refused",
        "FlatProtocol": "masks_have_their_shapes",
    },
    "rollout_worker": {
        "GoodWorker": "",
        "UntrainedWorker": "an_attempt_gives_valid_trajectories",
        "StrangerWorker": "trajectories_belong_to_their_attempt",
        "RetokenisingWorker": (
            "log_probabilities_and_versions_are_those_of_the_sampler "
            "what_is_trained_is_what_was_sampled"
        ),
        "ShiftedWorker": "log_probabilities_and_versions_are_those_of_the_sampler",
        "StaleWorker": "log_probabilities_and_versions_are_those_of_the_sampler",
        "MoodyWorker": "an_attempt_repeats attempts_do_not_mix",
        "RememberingWorker": "attempts_do_not_mix",
        "HidingWorker": "an_attempt_without_a_judgement_is_invalid",
        "DemandingWorker": "answers_may_be_cut_off",
    },
    "scenario": {
        "GoodScenario": "",
        "EmptyScenario": "it_has_problems_or_environments",
        "MoodyScenario": ("building_draws_no_shared_random_numbers equal_seeds_build_equal_tasks"),
        "SeedingScenario": "building_draws_no_shared_random_numbers",
        "NamelessScenario": ("held_out_problems_are_not_trained_on problems_are_rows_with_names"),
        "LeakingScenario": "held_out_problems_are_not_trained_on",
        "PreviewScenario": "a_preview_has_the_splits",
        "WalkScenario": "",
        "ColumnScenario": "environments_give_what_their_spaces_say",
        "UnseededScenario": "equal_seeds_give_equal_episodes",
        "ForgettingScenario": "a_saved_state_goes_on_as_it_would_have",
    },
    "tracker": {
        "GoodTracker": "",
        "LyingTracker": "a_fresh_run_misses_nothing",
        "PickyTracker": "every_end_is_taken numbers_that_are_not_finite_are_taken",
        "AsciiTracker": "samples_and_files_are_taken",
        "ChangingTracker": "metrics_are_left_as_they_were",
        "ThreadTracker": "all_is_done_in_another_thread",
        "StrayTracker": "it_writes_inside_the_run_folder",
        "LosingTracker": (
            "a_resumed_run_stores_no_step_twice every_number_is_stored_once two_runs_do_not_mix"
        ),
        "TwiceTracker": "a_resumed_run_stores_no_step_twice",
        "GlobalTracker": "two_runs_do_not_mix",
    },
    "sandbox": {
        "GoodSandbox": "",
        "DeafSandbox": "a_script_reads_and_prints threads_share_it",
        "TextSandbox": "a_function_is_called_and_gives_data",
        "StatusSandbox": (
            "a_function_is_called_and_gives_data "
            "a_program_reaches_no_other "
            "assertions_pass_only_when_they_hold "
            "every_end_has_its_verdict "
            "no_program_chooses_its_verdict"
        ),
        "PatientSandbox": "every_end_has_its_verdict",
        "WaitingSandbox": "a_program_that_sleeps_is_ended_too",
        "RoomySandbox": "every_end_has_its_verdict",
        "LoudSandbox": ("every_end_has_its_verdict results_are_as_bounded_as_what_is_printed"),
        "FilingSandbox": "every_end_has_its_verdict",
        "TrustingSandbox": "no_program_chooses_its_verdict",
        "ConnectedSandbox": "a_program_reaches_no_other",
        "ReadingSandbox": "a_program_reaches_no_other",
        "WritingSandbox": "a_program_reaches_no_other",
        "KillingSandbox": "a_program_reaches_no_other",
        "TellingSandbox": "a_program_is_told_no_variables_of_the_caller",
        "KeepingSandbox": "programs_leave_nothing_for_the_next_one",
        "SharedSandbox": "threads_share_it",
    },
    "hub": {
        "GoodHub": "",
        "BareHub": "a_model_has_its_files_at_one_commit",
        "ShuffledHub": ("a_commit_never_means_other_files the_rows_of_a_data_set_are_in_order"),
        "MovingHub": "a_commit_never_means_other_files",
        "PinlessHub": "an_address_is_pinned_to_its_commit",
        "VerboseHub": "what_is_missing_is_refused_in_one_line",
        "TolerantHub": ("a_name_of_another_form_is_not_published an_unknown_split_is_refused"),
    },
    "launcher": {
        "GoodLauncher": "",
        "MoodyLauncher": "a_preview_is_the_same_again",
        "SplittingLauncher": "any_words_can_be_sent",
        "TellingLauncher": "a_credential_is_never_shown",
        "TolerantLauncher": "what_it_does_not_know_is_refused_in_one_line",
        "IdleLauncher": "a_job_trains_to_its_end",
        "CheerfulLauncher": "a_job_that_fails_says_so",
    },
    "searcher": {
        "GoodSearcher": "",
        "WideSearcher": "values_are_in_their_space",
        "LonelySearcher": "another_process_sees_the_trials equal_seeds_propose_equal_values",
        "MoodySearcher": "equal_seeds_propose_equal_values",
        "PatientSearcher": "a_hopeless_trial_ends_and_a_good_one_does_not",
    },
    "train_service": {
        "GoodTraining": "",
        "UnmaskedTraining": ("log_probabilities_are_of_trained_tokens metrics_are_sums_and_counts"),
        "MixingTraining": "metrics_are_sums_and_counts rows_do_not_mix",
        "UnseededTraining": "equal_seeds_begin_alike micro_batches_add_up",
        "AscendingTraining": "a_step_changes_the_weights_and_learns",
        "LosslessTraining": "metrics_are_sums_and_counts",
        "LastTraining": "micro_batches_add_up",
        "ForgettingTraining": "its_state_is_all_that_training_changes",
        "PoisonedTraining": "a_gradient_that_is_not_finite_is_dropped",
        "PartialTraining": (
            "a_step_begins_without_the_gradient_of_the_last "
            "its_state_is_all_that_training_changes "
            "weights_go_from_one_service_to_another"
        ),
        "CarryingTraining": (
            "a_gradient_that_is_not_finite_is_dropped "
            "a_step_begins_without_the_gradient_of_the_last "
            "its_state_is_all_that_training_changes"
        ),
    },
    "harness_algorithm": {
        "GoodHarness": "",
        "DetachedHarness": "the_loss_is_a_number_with_a_gradient",
        "MoodyHarness": "equal_trees_give_equal_losses",
        "FailingHarness": "nothing_is_learned_from_exchanges_that_failed",
        "RootHarness": "a_tree_without_exchanges_has_no_steps",
        "ChangingHarness": "it_leaves_trees_as_they_were",
        "StatefulHarness": "its_state_can_be_loaded",
    },
    "inference_service": {
        "GoodInference": "",
        "ShiftedInference": (
            "an_answer_does_not_depend_on_the_others "
            "log_probabilities_are_those_of_the_model "
            "one_request_at_a_time_gives_the_same"
        ),
        "MoodyInference": "equal_requests_get_equal_answers",
        "FlatInference": "log_probabilities_are_those_of_the_model",
        "EchoInference": (
            "an_answer_does_not_depend_on_the_others "
            "each_request_has_its_answer "
            "equal_requests_get_equal_answers "
            "it_leaves_requests_as_they_were "
            "log_probabilities_are_those_of_the_model "
            "no_token_can_be_asked_for "
            "one_request_at_a_time_gives_the_same"
        ),
        "TolerantInference": "weights_that_do_not_fit_are_refused",
        "OnceInference": "one_request_at_a_time_gives_the_same",
        "GreedyInference": "no_token_can_be_asked_for",
        "BlankInference": "the_tokenizer_gives_text_back",
    },
    "fine_tune_service": {
        "GoodJobs": "",
        "ForgottenJobs": ("a_cancelled_job_ends a_job_is_found_by_its_name_after_a_restart"),
        "InventedJobs": (
            "a_job_is_found_by_its_name_after_a_restart a_job_that_nobody_made_is_not_found"
        ),
        "UnusedJobs": "a_job_trains_a_model_that_can_be_asked",
        "StubbornJobs": "a_cancelled_job_ends",
        "MadeUpJobs": "an_unknown_job_is_refused",
        "ChangingJobs": "it_leaves_examples_as_they_were",
        "OneSidedJobs": "jobs_learn_from_preferences_too",
        "FlickeringJobs": ("a_job_goes_on_from_the_model_of_another a_status_that_is_final_stays"),
        "BaselessJobs": "a_job_goes_on_from_the_model_of_another",
    },
    "dialogue_environment": {
        "GoodEnvironment": "",
        "ShortEnvironment": (
            "each_seed_has_its_tree "
            "what_is_said_depends_on_the_seed_of_the_tree_alone "
            "what_it_cannot_do_is_refused"
        ),
        "ForgetfulEnvironment": "exchanges_follow_their_dialogues",
        "FreeEnvironment": (
            "exchanges_have_tokens_scores_and_rewards exchanges_without_a_score_have_failed"
        ),
        "FlatRewardEnvironment": "rewards_differ",
        "MoodyEnvironment": "equal_seeds_give_equal_trees",
        "BatchEnvironment": "what_is_said_depends_on_the_seed_of_the_tree_alone",
        "WideEnvironment": "evaluations_are_one_dialogue_a_prompt",
        "HidingEnvironment": "exchanges_without_a_score_have_failed",
        "TolerantEnvironment": "what_it_cannot_do_is_refused",
    },
}
#: The test of the components that a session asks about.
ASKING = "test_the_suite_finds_what_is_broken_and_nothing_else"
#: What every contract says; tried with parsers.
SHARED = {
    "metadata_names_it",
    "a_new_process_finds_the_same",
    "it_is_a_documented_component",
    "an_unknown_key_is_refused",
}


@pytest.fixture(scope="module")
def failures(request, tmp_path_factory):
    """The failed tests by component, from one run over all that this session asks about."""
    caught = {kind: [] for kind in CAUGHT}
    for item in request.session.items:
        if getattr(item, "originalname", None) == ASKING:
            caught[item.callspec.params["kind"]].append(item.callspec.params["name"])
    caught = {kind: dict.fromkeys(parts) for kind, parts in caught.items() if parts}
    folder = tmp_path_factory.mktemp("broken")
    info = folder / "broken_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 1.0\n")
    lines = []
    for kind, parts in caught.items():
        lines += [f"[{KINDS[kind].group}]"]
        lines += [f"{name.lower()} = broken_components:{name}" for name in parts]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    here = os.path.join(os.path.dirname(os.path.dirname(__file__)), "support")
    done = forking.run(
        [
            *("-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE", "--pyargs"),
            *(f"plugrl.testing.suite.test_{kind}" for kind in caught),
            *(f"{option(kind)}={name.lower()}" for kind, parts in caught.items() for name in parts),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), here])},
    )
    assert " passed" in done.stdout, done.stdout + done.stderr
    names = {name.lower(): name for parts in caught.values() for name in parts}
    found = {name: set() for name in names.values()}
    pattern = r"^(?:FAILED|ERROR) \S+::test_(\w+)\[(\w+)"
    for test, name in re.findall(pattern, done.stdout, re.M):
        found[names[name]].add(test)
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    kills.sampled_of_each([[(kind, name) for name in CAUGHT[kind]] for kind in CAUGHT], number=2),
)
def test_the_suite_finds_what_is_broken_and_nothing_else(failures, kind, name):
    assert failures[name] == set(CAUGHT[kind][name].split())


@pytest.mark.parametrize("kind", CAUGHT)
def test_each_check_is_seen_to_fail(kind):
    module = importlib.import_module(f"plugrl.testing.suite.test_{kind}")
    (contract,) = [
        value
        for value in vars(module).values()
        if getattr(value, "kind", None) == kind and value.__name__.endswith("Contract")
    ]
    checks = {name.removeprefix("test_") for name in vars(contract) if name.startswith("test_")}
    seen = {test for tests in CAUGHT[kind].values() for test in tests.split()}
    assert checks <= seen | SHARED


def test_shared_checks_are_seen_to_fail():
    seen = {test for tests in CAUGHT["parser"].values() for test in tests.split()}
    # An entry point always belongs to a package.
    assert SHARED - {"metadata_names_it"} <= seen
