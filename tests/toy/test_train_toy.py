"""The training program: an interrupted run goes on as if nothing had happened, and leaves a checkpoint that loads."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prfaas_ref.model.checkpoint import load_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_toy.py"


@pytest.fixture(autouse=True)
def with_gradients():
    """Serving switches them off for the whole process."""
    with torch.enable_grad():
        yield


def load_example():
    spec = importlib.util.spec_from_file_location("train_toy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(module, out, steps, stop_after):
    training = module.Training(out, seed=1)
    if (out / "training.pt").exists():
        training.resume()
    for _ in range(stop_after):
        training.advance(steps, batch_tokens=256, cooldown=0.5)
    training.save()


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    module = load_example()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    train(module, whole, 3, stop_after=3)
    train(module, parts, 3, stop_after=1)
    train(module, parts, 3, stop_after=2)
    ours, theirs = (load_model(path).weights for path in (whole, parts))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_command_line_writes_a_checkpoint_and_its_curve(tmp_path, monkeypatch):
    module = load_example()
    monkeypatch.setattr(module, "EXAMINED", {512: 1})
    monkeypatch.setattr(sys, "argv", ["train_toy.py", "--out", str(tmp_path), "--steps", "2", "--batch-tokens", "256"])
    module.main()
    header, row = (tmp_path / "curve.csv").read_text().splitlines()
    assert header.startswith("step,seconds,level,answer_loss") and row.startswith("2,")
    assert load_model(tmp_path).weights["lm_head.weight"].shape == (257, 128)


WITH_A_SHORT_EXAMINATION = f"""
import sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import train_toy
train_toy.EXAMINED = {{256: 1}}
train_toy.main()
"""


def test_two_processes_train_one_model(tmp_path):
    """As torchrun starts them: each practises on text of its own, both apply the average, one writes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--out", str(tmp_path / "two"), "--steps", "2", "--batch-tokens", "256", "--seed", "1")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run = (sys.executable, "-c", WITH_A_SHORT_EXAMINATION, *options)
    both = [subprocess.Popen(run, env=os.environ | shared | {"RANK": rank}) for rank in "01"]
    try:
        assert [process.wait(timeout=120) for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
    assert (tmp_path / "two" / "curve.csv").read_text().splitlines()[1].startswith("2,")
    module = load_example()
    (tmp_path / "alone").mkdir()
    train(module, tmp_path / "alone", 2, stop_after=2)
    two, alone = (load_model(tmp_path / name).weights for name in ("two", "alone"))
    assert not torch.equal(two["lm_head.weight"], alone["lm_head.weight"])


def test_gradients_are_averaged_over_the_processes(tmp_path, monkeypatch):
    module = load_example()
    training = module.Training(tmp_path, seed=1)
    for weight in training.weights.values():
        weight.grad = torch.randn_like(weight)
    mine = {name: weight.grad.clone() for name, weight in training.weights.items()}
    monkeypatch.setattr(module, "PROCESSES", 2)
    monkeypatch.setattr(module.dist, "all_reduce", lambda sums: sums.add_(torch.arange(len(sums))))  # the other's
    assert training.share_out(torch.tensor(0.5)) == 0.25
    first = 1
    for name, weight in training.weights.items():
        theirs = torch.arange(first, first + weight.numel()).view_as(weight)
        assert torch.equal(weight.grad, (mine[name] + theirs) / 2)
        first += weight.numel()


def test_orthogonal_moves_singular_values_near_one():
    module = load_example()
    for shape in ((2, 24, 48), (2, 48, 24)):
        values = torch.linalg.svdvals(module.orthogonal(torch.randn(shape)))
        assert values.min() > 0.5 and values.max() < 1.5
