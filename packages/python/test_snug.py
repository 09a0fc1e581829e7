"""Tests the Python package with a program of snug: `test_snug.py build/cpu-release/snug [UNITTEST OPTIONS]`."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import snug

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "models"
JOB = {"model": FIXTURES / "llama", "data": FIXTURES / "data.jsonl", "sequence_length": 64, "batch_size": 4}


class PackageTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = Path(directory.name) / "run"

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


class PlanTest(PackageTest):
    def test_has_what_the_program_prints(self) -> None:
        plan = snug.plan(**JOB)
        job = ["--model", JOB["model"], "--data", JOB["data"], "--sequence-length", "64", "--batch-size", "4"]
        printed = json.loads(subprocess.check_output([snug.PROGRAM, "plan", "--json", *job], stderr=subprocess.DEVNULL))
        self.assertEqual(plan.json, printed)
        self.assertTrue(plan.fits)
        self.assertIsNone(plan.reason)
        self.assertEqual((plan.device_bytes, plan.parameters), (printed["device_bytes"], 265656))
        self.assertEqual(sum(plan.classes.values()), plan.device_bytes)
        self.assertTrue(any("2 of 12 samples" in note for note in plan.notes), plan.notes)

    def test_of_what_does_not_fit_says_why(self) -> None:
        plan = snug.plan(**JOB, host_memory="1MiB", disk_memory=0)
        self.assertFalse(plan.fits)
        self.assertIn("1048576 bytes", plan.reason)

    def test_mistakes_are_errors_with_the_programs_words(self) -> None:
        with self.assertRaises(snug.Error) as raised:
            snug.plan(**JOB, learning_rat=1e-4)
        self.assertEqual(raised.exception.exit_code, 2)
        self.assertIn("'learning_rate'", str(raised.exception))
        self.assertFalse(str(raised.exception).startswith("snug:"))


class TrainTest(PackageTest):
    def test_steps_come_as_they_are_taken_and_then_the_result(self) -> None:
        run = snug.train(self.out, **JOB, max_steps=3)
        first = next(run)
        self.assertIsNone(run.result)
        steps = [first, *run]
        self.assertEqual([step.json for step in steps], self.lines())
        self.assertEqual([step.step for step in steps], [1, 2, 3])
        self.assertEqual(run.result.loss, steps[-1].loss)
        self.assertEqual(run.result.out, self.out)
        self.assertTrue((run.result.trained / "adapter_model.safetensors").is_file())
        self.assertFalse(run.result.interrupted)
        self.assertIs(run.wait(), run.result)

    def test_steps_of_an_earlier_run_are_not_told_again(self) -> None:
        snug.train(self.out, **JOB, max_steps=3, save_every=2).wait()
        (self.out / "checkpoints" / "step-3").rename(self.out / "lost")
        resumed = [step.step for step in snug.train(self.out, **JOB, max_steps=4, save_every=2, resume=True)]
        self.assertEqual(resumed, [3, 4])
        again = [step.step for step in snug.train(self.out, **JOB, max_steps=2, overwrite=True)]
        self.assertEqual(again, [1, 2])

    def test_values_of_all_kinds_reach_the_job(self) -> None:
        data = self.out.parent / "one,two.jsonl"
        data.write_text((FIXTURES / "data.jsonl").read_text())
        job = {**JOB, "data": [data, FIXTURES / "data.jsonl"]}
        run = snug.train(
            self.out, **job, max_steps=1, packing=False, lora_rank_pattern={"q_proj": 4}, learning_rate=1e-3, seed=None
        )
        run.wait()
        written = (self.out / "job.yaml").read_text()
        for line in ("packing: false", "learning_rate: 0.001", "seed: 42", "lora_rank_pattern: q_proj=4"):
            self.assertIn(line + "\n", written)
        self.assertIn("one\\,two.jsonl,", written)

    def test_a_run_that_fails_raises_at_the_next_step(self) -> None:
        run = snug.train(self.out, **{**JOB, "data": "missing.jsonl"})
        with self.assertRaises(snug.Error) as raised:
            next(run)
        self.assertEqual(raised.exception.exit_code, 2)
        self.assertIn("missing.jsonl", str(raised.exception))
        with self.assertRaises(snug.Error):
            run.wait()

    def test_its_error_is_found_in_a_log_of_json(self) -> None:
        with self.assertRaises(snug.Error) as raised:
            snug.train(self.out, **JOB, max_steps=1, log_format="json", disk_dir="missing").wait()
        self.assertIn("missing", str(raised.exception))
        self.assertFalse(str(raised.exception).startswith("{"))

    def test_one_that_is_stopped_has_saved_everything(self) -> None:
        with snug.train(self.out, **JOB, max_steps=100000) as run:
            next(run)
        last = run.wait()
        self.assertTrue(last.interrupted)
        self.assertEqual(last.steps, self.lines()[-1]["step"])
        self.assertTrue((self.out / "checkpoints" / f"step-{last.steps}").is_dir())


class CommandTest(PackageTest):
    def test_the_module_becomes_the_program(self) -> None:
        call = f"import snug; snug.PROGRAM = {str(snug.PROGRAM)!r}; from snug.__main__ import main; main()"
        ended = subprocess.run(
            [sys.executable, "-c", call, "plan", "--nonsense"],
            cwd=Path(snug.__file__).parents[1],
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, 2)
        self.assertIn("unknown option 'nonsense'", ended.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} PROGRAM [UNITTEST OPTIONS]")
    snug.PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main()
