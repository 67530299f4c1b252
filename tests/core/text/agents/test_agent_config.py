"""``agent_config.yaml``: what the guides write is read, and faults have lines."""

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.agent_config import load_agent
from plugrl.core.text.inference.sampling import SamplingParams

GUIDE = """\
type: agent
name: my_task_agent
max_context_tokens: 100000
system_prompt: |
  You are an expert.

  Output <answer>Your final answer</answer>
system_prompt_type: string  # or 'list'
tool_call_mode: openai
tools:
  - name: calculator
    binding: custom_tools:calculator
    description: "Perform mathematical calculations"
llm_config:
  temperature: 0.7
  max_tokens: 8192
  api_type: openai_chat_completion
tracers:
  - import: nexau.archs.tracer.adapters.in_memory:InMemoryTracer
"""
TOOLS = "def calculator(expression: str) -> str:\n    return expression\n"


def test_the_file_of_the_guides(workspace):
    agent = load_agent(workspace(GUIDE, custom_tools=TOOLS))
    assert (agent.name, agent.limit, agent.max_turns) == ("my_task_agent", 100000, None)
    assert agent.system == (
        {
            "role": "system",
            "content": "You are an expert.\n\nOutput <answer>Your final answer</answer>\n",
        },
    )
    (tool,) = agent.tools
    assert tool.function("x") == "x"
    assert tool.schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    }
    (note,) = agent.notes
    assert note.endswith(
        "agent_config.yaml: tracers have no effect; every turn is recorded token by token"
    )


def test_sampling_of_the_file_holds_in_training_alone(workspace):
    agent = load_agent(
        workspace("llm_config: {temperature: 0.7, top_p: 0.9, top_k: 5, max_tokens: 8, stop: '.'}")
    )
    base = SamplingParams(temperature=0.0, max_new_tokens=99)
    assert agent.sampling.over(base, is_val=False) == SamplingParams(
        temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=8, stop=(".",)
    )
    assert agent.sampling.over(base, is_val=True) == SamplingParams(
        temperature=0.0, max_new_tokens=8, stop=(".",)
    )


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("system_prompt: [a, b]", ["a", "b"]),
        ("{system_prompt: [a], system_prompt_type: list}", ["a"]),
        ("system_prompt: [{role: user, content: a}, {role: assistant, content: b}]", ["a", "b"]),
        ("{system_prompt: prompt.md, system_prompt_type: file}", ["from a file"]),
        ("{system_prompt: '${env.AGENT_PROMPT}'}", ["from outside"]),
        ("system_prompt: ''", []),
        ("name: x", []),
    ],
)
def test_system_prompts(workspace, tmp_path, monkeypatch, text, system):
    monkeypatch.setenv("AGENT_PROMPT", "from outside")
    (tmp_path / "prompt.md").write_text("from a file")
    assert [m["content"] for m in load_agent(workspace(text)).system] == system


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sytem_prompt: a", ":1): unknown key; did you mean system_prompt?"),
        ("name: x\nllm_config: {temprature: 1}", ":2): unknown key; did you mean temperature?"),
        ("tools:\n  - nmae: x", "nmae (FILE:2): unknown key; did you mean name?"),
        ("tools:\n  - {name: x}", "binding (FILE:2): is missing; write name and binding"),
        ("type: team", "must be agent"),
        ("tool_call_mode: xml", "tool_call_mode (FILE:1): must be openai"),
        ("system_prompt_type: jinja", "must be one of string, list, file, not 'jinja'"),
        (
            "{system_prompt: a, system_prompt_type: list}",
            "must be a list, as system_prompt_type says",
        ),
        ("{system_prompt: [a], system_prompt_type: string}", "must be text; for a list write"),
        ("{system_prompt: no.md, system_prompt_type: file}", "no such file: no.md"),
        ("system_prompt: [3]", "message 0 is 3"),
        (
            "llm_config: {temperature: -1}",
            "llm_config.temperature (FILE:1): must be at least 0, not -1.0",
        ),
        ("llm_config: {max_tokens: 0}", "must be at least 1"),
        ("max_iterations: 0", "max_iterations (FILE:1): must be at least 1"),
        ("stop_tools: [x]", "must be names of tools; 'x' is none"),
        (
            "tools:\n  - {name: x, binding: 'lost:f'}",
            "tools[0].binding (FILE:2): there is no lost.py in",
        ),
        ("mcp_servers: [{}]", "name either command or url, one of them"),
        ("mcp_servers: [{command: [x], url: y}]", "name either command or url, one of them"),
        ("- a", "the root must be a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_faults_name_the_key_and_its_line(workspace, monkeypatch, tmp_path, text, fault):
    path = workspace(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_agent(path)
    assert fault.replace("FILE", "agent_config.yaml") in str(caught.value)


def test_all_faults_are_in_one_report(workspace):
    twice = "{name: x, binding: 'custom_tools:calculator'}"
    path = workspace(
        f"nam: x\ntools:\n  - {twice}\n  - {twice}\n  - {{name: y, binding: z}}\n",
        custom_tools=TOOLS,
    )
    with pytest.raises(ConfigError) as caught:
        load_agent(path)
    assert len(caught.value.faults) == 3
