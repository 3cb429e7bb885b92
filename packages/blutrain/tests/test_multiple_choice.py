"""Multiple choice: scores against the full forward pass and transformers, the file's form, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import assert_as_good_as
from hf_models import CONFIG, write_model

import blutensor as bt
import blutrain
from blutrain.cli import run_command
from blutrain.config import ModelConfig
from blutrain.data.tokenizer import ByteTokenizer
from blutrain.errors import DataAccessError, DataError, InvalidInputError
from blutrain.huggingface import import_hf
from blutrain.model import GPT
from blutrain.multiple_choice import Question, evaluate_choices, read_questions, score_endings
from blutrain.weights import load_model

QUESTIONS = [
    Question("The cat sat", ("on the mat.", "of", "in a very long sentence that goes on", "x"), 0),
    Question("", ("a", "b"), 1),
    Question("naïve \N{SNAKE}", ("é", "two words", "three"), 2),
    Question("word " * 30, ("cut at its beginning", "it is"), 1),
]
CONTEXT = 64


def write_questions(path: Path, questions: list[Question] = QUESTIONS, **more: Any) -> Path:
    lines = [{"ind": 1, "ctx": q.context, "endings": q.endings, "label": q.label, **more} for q in questions]
    path.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model on bytes, with a padded vocabulary."""
    folder = tmp_path_factory.mktemp("choices")
    config = {**CONFIG, "vocab_size": 257, "n_positions": CONTEXT}
    import_hf(write_model(folder / "hf", config=config), folder / "run", settings=["data.tokenizer=bytes"])
    return folder / "run"


def one_by_one(model: GPT) -> np.ndarray:
    """Loss of every ending from the logits of the whole text, alone."""
    tokenizer, losses = ByteTokenizer(), []
    for question in QUESTIONS:
        for ending in question.endings:
            context = [*tokenizer.encode(question.context)] if question.context else [0]
            tail = [int(token) for token in tokenizer.encode(" " + ending)]
            ids = np.array([*context, *tail], np.int32)[-(CONTEXT + 1) :]
            with bt.no_grad():
                logits = model.logits(bt.asarray(np.ascontiguousarray(ids[None, :-1]))).numpy()[0, :, :257]
            exact = logits.astype(np.float64)
            normal = exact - exact.max(1, keepdims=True)
            log_probabilities = normal - np.log(np.exp(normal).sum(1, keepdims=True))
            losses.append(-sum(log_probabilities[-len(tail) + i, token] for i, token in enumerate(tail)))
    return np.array(losses)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_scores_are_those_of_the_whole_text(run: Path, batch: int) -> None:
    model = load_model(run)[0]
    scores = score_endings(model, ByteTokenizer(), QUESTIONS, batch=batch)
    np.testing.assert_allclose(scores.losses, one_by_one(model), rtol=2e-6)  # logits in float32, sums in float64
    assert scores.tokens.tolist() == [len(f" {e}".encode()) for q in QUESTIONS for e in q.endings]
    assert scores.truncated == 2
    again = score_endings(model, ByteTokenizer(), QUESTIONS, batch=batch)
    np.testing.assert_array_equal(scores.losses, again.losses)


def test_shares(run: Path, tmp_path: Path) -> None:
    losses = one_by_one(load_model(run)[0])
    found = evaluate_choices(run, write_questions(tmp_path / "q.jsonl"), device="cpu")
    lengths = np.array([len(f" {ending}".encode()) for question in QUESTIONS for ending in question.endings])
    edges = np.cumsum([0, *(len(question.endings) for question in QUESTIONS)])

    def share(scores: np.ndarray) -> float:
        answers = [int(scores[a:b].argmin()) for a, b in itertools.pairwise(edges)]
        return sum(a == q.label for a, q in zip(answers, QUESTIONS, strict=True)) / len(QUESTIONS)

    assert (found.questions, found.step, found.truncated) == (4, 0, 2)
    assert found.accuracy == share(losses)
    assert found.accuracy_norm == found.accuracy_norm_bytes == share(losses / lengths)  # a token is a byte here
    right = [
        Question(q.context, q.endings, int(losses[a:b].argmin()))
        for q, a, b in zip(QUESTIONS, edges, edges[1:], strict=False)
    ]
    assert evaluate_choices(run, write_questions(tmp_path / "r.jsonl", right), device="cpu").accuracy == 1
    few = evaluate_choices(run, tmp_path / "r.jsonl", max_questions=2, device="cpu")
    assert (few.questions, few.accuracy) == (2, 1)


@pytest.mark.torch
def test_scores_beside_transformers(torch: Any, transformers: Any, run: Path) -> None:
    """Endings of one question as a padded batch with an attention mask, as its users score them."""
    folder = run.parent / "hf"
    tokenizer = ByteTokenizer()
    ours = score_endings(load_model(run)[0], tokenizer, QUESTIONS).losses
    results = []
    for dtype in (torch.float32, torch.float64):
        model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval()
        losses: list[float] = []
        for question in QUESTIONS:
            context = tokenizer.encode(question.context).tolist() or [0]
            endings = [tokenizer.encode(f" {ending}").tolist() for ending in question.endings]
            rows = [(context + ending)[-(CONTEXT + 1) :] for ending in endings]
            width = max(map(len, rows)) - 1
            ids = torch.tensor([[*row[:-1], *[0] * (width - len(row) + 1)] for row in rows])
            mask = torch.tensor([[1] * (len(row) - 1) + [0] * (width - len(row) + 1) for row in rows])
            with torch.no_grad():
                logits = model(ids, attention_mask=mask).logits
            for i, (row, ending) in enumerate(zip(rows, endings, strict=True)):
                part = logits[i, len(row) - 1 - len(ending) : len(row) - 1]
                loss = torch.nn.functional.cross_entropy(part, torch.tensor(ending), reduction="sum")
                losses.append(loss.item())
        results.append(np.array(losses))
    assert_as_good_as(ours, *results, "losses of endings")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ('{"ctx": "a", "endings": ["b", "c"]}', "'label'"),
        ('{"ctx": 1, "endings": ["b", "c"], "label": 0}', "no text as ctx"),
        ('{"ctx": "a", "endings": ["b"], "label": 0}', "fewer than two"),
        ('{"ctx": "a", "endings": ["b", ""], "label": 0}', "fewer than two"),
        ('{"ctx": "a", "endings": ["b", 3], "label": 0}', "no text"),
        ('{"ctx": "a", "endings": ["b", "c"], "label": 2}', "label '2' for 2 endings"),
        ('{"ctx": "a", "endings": ["b", "c"], "label": -1}', "label '-1'"),
        ('{"ctx": "a", "endings": ["b", "c"], "label": ""}', "ValueError"),
        ('{"ctx": "a", "endings": ["b", "c"], "label": true}', "label 'True'"),
        ("[" * 100_000, "RecursionError"),
        ('{"ctx": "a", "endings": "bc", "label": 0}', "fewer than two texts as endings"),
        ('{"ctx": "a", "endings": {"b": 1, "c": 2}, "label": 0}', "fewer than two texts as endings"),
        (r'{"ctx": "a", "endings": ["b", "\udc80"], "label": 0}', r"half of a surrogate pair, U\+DC80"),
        (r'{"ctx": "\ud800", "endings": ["b", "c"], "label": 0}', r"half of a surrogate pair, U\+D800 at position 0"),
    ],
)
def test_lines_that_are_no_question(tmp_path: Path, line: str, message: str) -> None:
    path = write_questions(tmp_path / "q.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=message) as caught:
        read_questions(path)
    assert f"{path}:9" in str(caught.value)


def test_files(tmp_path: Path, run: Path) -> None:
    path = write_questions(tmp_path / "q.jsonl", label="1")
    assert [question.label for question in read_questions(path)] == [1, 1, 1, 1]
    with pytest.raises(DataAccessError, match="check the path"):
        read_questions(tmp_path / "absent")
    path.write_text("\n")
    with pytest.raises(DataError, match="expected questions"):
        evaluate_choices(run, path)
    with pytest.raises(InvalidInputError, match="max_questions"):
        evaluate_choices(run, path, max_questions=-1)


def test_what_does_not_fit() -> None:
    bt.manual_seed(1)
    model = GPT(ModelConfig(layers=1, heads=1, channels=8, context=8, vocab_size=100))
    with pytest.raises(InvalidInputError, match=r"at most 8 tokens .* got 9"):
        score_endings(model, ByteTokenizer(), [Question("a", ("b" * 8, "c"), 0)])
    with pytest.raises(InvalidInputError, match=r"below 100 .* got 122"):
        score_endings(model, ByteTokenizer(), [Question("z", ("b", "c"), 0)])
    scores = score_endings(model, ByteTokenizer(), [Question("aaa", ("b" * 7, "c"), 0)])
    assert scores.truncated == 1
    assert np.isfinite(scores.losses).all()
    assert len(score_endings(model, ByteTokenizer(), []).losses) == 0


def test_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_questions(tmp_path / "q.jsonl")
    arguments = ["eval", str(run), "--choices", str(path), "--device", "cpu"]
    assert run_command(arguments) == 0
    assert "over 4 questions, 2 endings with a context that was cut" in capsys.readouterr().out
    assert run_command([*arguments, "--json", "--max-questions", "3"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["questions"] == 3
    assert set(values) == {"step", "questions", "acc", "acc_norm", "acc_norm_bytes", "truncated"}


def test_bits_per_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox é\n" * 60)
    blutrain.prepare([tmp_path / "text.txt"], tmp_path / "data", val_fraction=0.3)
    config = {**CONFIG, "vocab_size": 256}
    import_hf(write_model(tmp_path / "hf", config=config), tmp_path / "run")
    found = blutrain.evaluate(tmp_path / "run", data=tmp_path / "data", device="cpu")
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) * found.tokens / found.text_bytes)
    assert found.text_bytes == found.tokens  # bytes, and the only end-of-text stands first, where nothing predicts it
    assert run_command(["eval", str(tmp_path / "run"), "--data", str(tmp_path / "data"), "--device", "cpu"]) == 0
    assert f"{found.bits_per_byte:.4f} bits a byte" in capsys.readouterr().out
