"""`examples/lm_eval.sh` on a small task: scores and answers over four hops are those of one `vllm serve`.
`scripts/lm_eval_env.sh` makes its environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.completions import MODEL
from tests.support.pd_stack import Stack, everything_becomes_free
from tests.support.processes import ServerProcess

CAPITALS = {
    "Germany": "Berlin", "Spain": "Madrid", "Japan": "Tokyo", "Norway": "Oslo", "Egypt": "Cairo",
    "Canada": "Ottawa", "Australia": "Canberra", "Brazil": "Brasilia", "Kenya": "Nairobi", "Peru": "Lima",
    "Poland": "Warsaw", "Cuba": "Havana", "Bhutan": "Thimphu", "Kazakhstan": "Astana", "Burundi": "Gitega",
    "Nauru": "Yaren", "Palau": "Ngerulmud", "Eritrea": "Asmara", "Moldova": "Chisinau", "Tuvalu": "Funafuti",
}  # fmt: skip
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "lm_eval.sh"
TASK = "capitals"


def write_task(directory: Path) -> None:
    """A task that lm-eval finds with `--include_path`, its data beside it."""
    data = directory / "capitals.jsonl"
    data.write_text(
        "".join(json.dumps({"country": name, "capital": city}) + "\n" for name, city in CAPITALS.items())
    )
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "What is the capital of {{country}}?",
        "doc_to_target": "{{capital}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0},
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
        ],
        "filter_list": [
            {
                "name": "word",
                "filter": [
                    {"function": "regex", "regex_pattern": f"({'|'.join(CAPITALS.values())})"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metadata": {"version": 1.0},
    }
    (directory / f"{TASK}.yaml").write_text(json.dumps(task))  # YAML holds JSON


def evaluate(server: ServerProcess, directory: Path) -> tuple[float, list[str]]:
    """Score and answers."""
    program = Path(os.environ.get("LM_EVAL_ENV", "")) / "bin" / "lm_eval"
    assert program.is_file(), "LM_EVAL_ENV names no environment of lm-eval: run `make test-vllm`"
    write_task(directory)
    done = subprocess.run(
        [
            *(str(SCRIPT), server.url, MODEL, TASK, "--include_path", str(directory)),
            *("--output_path", str(directory / "out"), "--log_samples"),
        ],
        env=os.environ
        | {"LM_EVAL": str(program)}
        | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(directory / "hf")}
        | {"OPENAI_API_KEY": "none", "TOKENIZERS_PARALLELISM": "false"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [result] = (directory / "out").rglob("results_*.json")
    [samples] = (directory / "out").rglob("samples_*.jsonl")
    scores: dict[str, Any] = json.loads(result.read_text())["results"][TASK]
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    answers = {line["doc"]["country"]: line["resps"][0][0] for line in lines}
    return scores["exact_match,word"], [answers[country] for country in CAPITALS]


def test_scores_and_answers_are_those_of_one_coupled_engine(
    stack: Stack, coupled: ServerProcess, tmp_path: Path
) -> None:
    folders = [tmp_path / "apart", tmp_path / "coupled"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as runs:
        apart, together = runs.map(evaluate, (stack.apart, coupled), folders)
    assert apart == together
    score, answers = apart
    assert len(answers) == len(CAPITALS)
    assert all(answers)
    assert 0.3 < score < 1, "a task that tells answers apart"
    everything_becomes_free(stack)
