"""What is wrong before a server is asked, and servers that refuse."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import forking
import pytest
import yaml
from faults import Door

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare
from plugrl.core.text.inference.services import ModelSpec

pytest.importorskip("tinker")

from plugrl.plugins.tinker.inference_service import TinkerInferenceService  # noqa: E402
from plugrl.plugins.transformers.tokenizer import character_tokenizer  # noqa: E402

KEY = "tml-secret-word"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer alone: nothing is loaded here."""
    made = tmp_path_factory.mktemp("model") / "tokenizer"
    character_tokenizer("0123456789+=").wrapped.save_pretrained(made)
    return made


@pytest.fixture
def tree(tree, folder):
    """Makes the configuration of a run over a server of which there is an address alone."""

    def make(url, *words, **changes):
        return tree(SimpleNamespace(url=url, model=str(folder)), *words, **changes)

    return make


def faults(tree):
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_whole_configuration_is_validated_without_a_server(tree, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    for trainer in ("remote_api_cross_entropy", "remote_api_grpo"):
        prepare(tree("http://127.0.0.1:1", trainer))


@pytest.mark.parametrize("service", ["inference", "train"])
def test_without_the_kit_the_command_that_installs_it_is_named(tree, monkeypatch, service):
    monkeypatch.setitem(sys.modules, "tinker", None)
    text = faults(tree("http://127.0.0.1:1"))
    assert f"models.policy.{service}" in text
    assert "pip install 'plugrl[tinker]'" in text


def test_what_is_missing_is_found(tree, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    text = faults(tree("https://example.com/tinker", models__policy__train__base_model=None))
    assert "models.policy.train.base_model" in text
    assert "is needed: the name that the service has for the model" in text
    assert "TINKER_API_KEY, which holds the key of https://example.com/tinker, is not set" in text
    named = tree("https://example.com/tinker", environment={"variables": {"TINKER_API_KEY": KEY}})
    prepare(named)
    assert "tokenizer" in faults(
        tree("http://127.0.0.1:1", models__policy__source={"path": str(tmp_path)})
    )
    assert "lora_rank" in faults(tree("http://127.0.0.1:1", models__policy__adapter={"r": 4}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("api_key", KEY, "must be the name of an environment variable"),
        ("base_url", f"https://me:{KEY}@example.com", "no user or password"),
        ("base_url", "example.com", "must begin with http"),
        ("timeout", 0, "must be above 0"),
        ("model_path", "elsewhere", "must begin with tinker://"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_the_secret(tree, key, value, words):
    text = faults(tree("http://127.0.0.1:1", **{f"models__policy__inference__{key}": value}))
    assert words in text
    assert KEY not in text


def test_a_loss_that_the_api_lacks_is_refused(tree):
    changes = {"trainer__algorithm": {"loss_fn": "gspo"}}
    text = faults(tree("http://127.0.0.1:1", "remote_api_grpo", **changes))
    assert "TinkerTrainService has no loss 'gspo'" in text


def test_weights_that_the_sampler_cannot_get_are_refused(tree, monkeypatch):
    url = "http://127.0.0.1:1"
    monkeypatch.setenv("WEAVER_API_KEY", "sk-x")
    other = {"type": "weaver", "base_url": url, "base_model": "m"}
    text = faults(tree(url, models__policy__train=other))
    assert "models.policy.train" in text
    assert "WeaverTrainService does not keep its weights at the service tinker" in text
    assert "write type: tinker here" in text
    text = faults(tree(url, models__policy__inference=other))
    assert "TinkerTrainService does not keep its weights at the service weaver" in text
    text = faults(tree(url, models__policy__train="in_process"))
    assert "InProcessTrainService does not keep its weights at the service tinker" in text
    text = faults(tree(url, models__policy__inference="transformers"))
    assert "models.policy.inference" in text
    assert "cannot sample from weights that the service tinker keeps; write type: tinker" in text


def load(url, folder, cls=TinkerInferenceService, **options):
    settings = {"base_url": url, "base_model": "m", "patience": 4.0, "max_context": 32}
    service = cls({**settings, **options})
    source = ConfigView({"path": str(folder), "config": {}, "dtype": "float32"})
    service.load(ModelSpec("policy", source, seed=3, device="cpu"))


def test_a_refused_key_is_named_by_its_variable(folder, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with Door() as door:
        for status in (401, 403):
            door.always = status
            with pytest.raises(ConfigError) as caught:
                load(door.url, folder, api_key="MY_KEY")
            assert f"{door.url} refuses the key of MY_KEY ({status})" in str(caught.value)
            assert KEY not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "of-another-form")
    with pytest.raises(ConfigError) as caught:
        load("http://127.0.0.1:1", folder, api_key="MY_KEY")
    text = str(caught.value)
    assert "MY_KEY holds no key of the tinker service at http://127.0.0.1:1: keys begin" in text
    assert "'tml-'; set it to a key of that service" in text
    assert "TinkerError" not in text
    assert "of-another-form" not in text


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_a_key_is_found_bad_when_a_run_has_begun_and_the_page_says_so(tree, tmp_path):
    with Door() as door:
        door.always = 401
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree(door.url)))
        ended = forking.run(
            ["-m", "plugrl", "train", "run.yaml"],
            cwd=tmp_path,
            env=os.environ | {"TINKER_API_KEY": KEY},
        )
    assert "refuses the key of TINKER_API_KEY (401)" in ended.stderr
    page = Path(__file__).parents[2] / "docs/remote-services.md"
    (row,) = [line for line in page.read_text().splitlines() if "refused key" in line]
    assert (ended.returncode, row.split("|")[-2].strip()) == (1, "1")


@pytest.mark.integration
def test_a_server_that_is_down_is_given_some_time(folder):
    silent = r"http://127.0.0.1:1 was silent for (\d+) seconds .*Connection refused"
    with pytest.raises(RunError, match=silent) as caught:
        load("http://127.0.0.1:1", folder)
    assert int(re.search(silent, str(caught.value))[1]) >= 4


@pytest.mark.integration
@pytest.mark.parametrize("fault", [500, 429, "garbage", "cut"])
def test_a_server_that_is_out_of_order_ends_the_wait(folder, fault):
    with Door() as door:
        door.always = fault
        with pytest.raises(RunError, match=door.url):
            load(door.url, folder, timeout=3.0)
        # One that answers at all is asked again before it is given up.
        asked = [path for path, _ in door.asked if path != "healthz"]
        assert len(asked) > 1 or fault == "garbage", asked


@pytest.mark.parametrize("name", ["tinker_sft", "tinker_grpo", "tinker_opd"])
def test_recipes_are_whole_and_say_where_they_look(name, folder, monkeypatch):
    monkeypatch.setenv("TINKER_TOKENIZER", str(folder))
    monkeypatch.setenv("TINKER_BASE_MODEL", "mine")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:1")
    experiment = prepare(name, ["models.policy.inference.max_context=32"])
    policy = experiment.validated.tree["models"]["policy"]
    assert policy["inference"]["base_url"] == "http://127.0.0.1:1"
    assert policy["inference"]["base_model"] == "mine"
    monkeypatch.delenv("TINKER_TOKENIZER")
    with pytest.raises(
        ConfigError, match="mine: there is no such folder; a model of the hub is written owner"
    ):
        prepare(name)
