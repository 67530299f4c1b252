"""From a configuration to a job: what travels, what is refused, and how it is named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from launched import EXPERIMENT, FILES, write_project

from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.experiment import prepare
from plugrl.core.launch.job import job_name, make_job
from plugrl.core.plugins.registry import default_registry

SECRET = "sk-0123456789abcdef0123"


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    write_project(folder)
    monkeypatch.chdir(folder)
    return folder


def made(config="mini.yaml", overrides=(), **options):
    experiment = prepare(config, overrides, elsewhere=True)
    return make_job(
        config,
        overrides,
        experiment.composed,
        experiment.validated,
        experiment.registry,
        tag=options.pop("tag", "t"),
        **options,
    )


def names(job):
    return [str(file.relative_to(job.folder)) for file in job.files]


def test_the_files_that_are_named_travel_with_the_modules_beside_code(project):
    job = made()
    assert names(job) == FILES
    assert job.words == ("train", "mini.yaml")
    assert job.name == "mini-t"
    assert job.packages["plugrl"]


def test_a_configuration_is_found_from_another_folder(project, monkeypatch):
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    job = made(str(project / "mini.yaml"))
    assert job.words == ("train", "../mini.yaml")
    assert sorted(str(file.relative_to(project)) for file in job.files) == FILES


def test_a_recipe_is_named_and_its_files_stay(project):
    job = made("math_parquet")
    assert job.words == ("train", "math_parquet")
    assert job.files == ()


def test_absolute_paths_are_those_of_the_cluster(project):
    (project / "mini.yaml").write_text(EXPERIMENT.replace('"data/*.jsonl"', '"/data/all.jsonl"'))
    assert names(made()) == [name for name in FILES if not name.startswith("data")]
    with pytest.raises(ConfigError, match=r"no such file: /data/all\.jsonl"):
        prepare("mini.yaml")


def test_a_device_of_the_cluster_is_not_asked_of_this_machine(project):
    assert made(overrides=["settings.device=cuda:7"]).words[-1] == "settings.device=cuda:7"


def test_files_of_plugins_and_the_folders_of_actors_travel(project):
    (project / "mine.py").write_text("")
    (project / "prompts").mkdir()
    (project / "prompts" / "a.txt").write_text("x")
    job = made(overrides=["settings.cluster.files=[prompts]"], plugins=["mine.py", "os"])
    assert set(names(job)) == {*FILES, "mine.py", "prompts/a.txt"}
    assert job.words[:4] == ("-p", "mine.py", "-p", "os")


def test_too_many_files_are_refused(project, monkeypatch):
    monkeypatch.setattr("plugrl.core.launch.files.MOST_FILES", 3)
    with pytest.raises(ConfigError, match=r"more than 3 files.*absolute path"):
        made()


def test_variables_travel_by_value_and_credentials_by_name(project, monkeypatch):
    monkeypatch.setenv("MY_PROJECT", "it's $HOME")
    monkeypatch.setenv("MY_API_KEY", SECRET)
    text = EXPERIMENT + "project_name: ${oc.env:MY_PROJECT}-${oc.env:MY_API_KEY}\n"
    (project / "mini.yaml").write_text(text)
    job = made()
    assert job.variables == {"MY_PROJECT": "it's $HOME"}
    assert job.secrets == ("MY_API_KEY",)
    assert SECRET not in repr(job)


@pytest.mark.parametrize(
    ("lines", "overrides", "where"),
    [
        (
            f"environment: {{variables: {{WANDB_API_KEY: {SECRET}}}}}",
            [],
            "WANDB_API_KEY (mini.yaml",
        ),
        (f"# {SECRET}", [], "mini.yaml: "),
        ("", [f"environment.variables.HF_TOKEN={SECRET}"], "environment.variables.HF_TOKEN (com"),
        (f"project_name: https://me:{SECRET}@host/x", [], "project_name (mini.yaml"),
    ],
)
def test_a_credential_that_is_written_out_is_refused(project, lines, overrides, where):
    (project / "mini.yaml").write_text(EXPERIMENT + lines + "\n")
    with pytest.raises(ConfigError) as caught:
        made(overrides=overrides)
    message = str(caught.value)
    assert where in message
    assert "${oc.env:NAME}" in message
    assert SECRET not in message
    assert "\n" not in message


def test_a_setup_script_with_a_credential_is_refused(project):
    (project / "env.sh").write_text(f"export A=1\nexport WANDB_API_KEY={SECRET}\n")
    with pytest.raises(ConfigError, match=r"env\.sh sets WANDB_API_KEY"):
        made(overrides=["environment.setup_script=env.sh"])
    (project / "env.sh").write_text("export WANDB_API_KEY=$FROM_ELSEWHERE\n")
    assert "env.sh" in names(made(overrides=["environment.setup_script=env.sh"]))


@pytest.mark.parametrize(
    ("experiment", "tag", "name"),
    [
        ("my_exp.v2", "a b", "my-exp-v2-a-b"),
        ("x", None, "x-20260102-030405"),
        ("owner/x", "v:1", "owner-x-v-1"),
    ],
)
def test_names_of_jobs(experiment, tag, name):
    assert job_name(experiment, tag, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == name


@pytest.mark.parametrize(
    ("experiment", "tag"), [("实验", "t"), ("", "t"), ("x", ""), ("x", "a\"'$(b)"), ("x", "ä")]
)
def test_what_makes_no_name_is_refused(experiment, tag):
    with pytest.raises(UsageError, match="makes no name of a job"):
        job_name(experiment, tag)


def test_a_run_is_resumed_by_its_name(project):
    job = made(resume="20260102-ab")
    assert job.words_for("/r") == ("resume", "20260102-ab", "--runs-folder", "/r")
    assert made().words_for("/r") == ("train", "mini.yaml", 'settings.runs_folder="/r"')


@pytest.mark.parametrize("folder", ["/a b", '/a"b', "/a:b{c}", "/ä\\n", "/${x}"])
def test_any_folder_for_runs_is_read_as_written(project, folder):
    word = made().words_for(folder)[-1]
    if "$" in folder:
        # A reference, in every configuration.
        with pytest.raises(ConfigError):
            prepare("mini.yaml", [word], preflight=False)
        return
    tree = prepare("mini.yaml", [word], preflight=False).validated.tree
    assert tree["settings"]["runs_folder"] == folder


def test_world_size_of_the_guides_is_the_number_of_gpus(project):
    text = EXPERIMENT + "train_service: {world_size: 8}\n"
    (project / "mini.yaml").write_text(text)
    assert made().resource.training.gpu_count == 8
    with pytest.raises(ConfigError, match="differs from resource.training.gpu_count"):
        made(overrides=["resource.training.gpu_count=4"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("resource.training.gpu_cuont=4", "did you mean gpu_count"),
        ("resource.imgae=x", "did you mean image"),
        ("resource.training.gpu_count=-1", "at least 0"),
        ("resource.queue=A_b", "small letters"),
        ("resource.secrets.WANDB_API_KEY=hunter22hunter22", "not the value"),
        ("resource.secrets={A B: a/b}", "no environment variable"),
        ("resource.volumes=[{source: nfs, path: /x}]", "claim/NAME"),
        ("resource.volumes=[{source: claim/x, path: x}]", "absolute"),
        ('resource.time_limit="1:00\\n#SBATCH --uid=0"', "must be minutes"),
        ("resource.partition='gpu --uid=0'", "one word"),
    ],
)
def test_bad_resources_are_refused(project, override, said):
    with pytest.raises(ConfigError) as caught:
        prepare("mini.yaml", [override], elsewhere=True)
    assert said in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_built_in_launchers_are_components():
    found = {record.name for record in default_registry().records("launcher")}
    assert {"local", "ray", "kubernetes", "slurm"} <= found
