"""What the module `czero` promises; test_module.sh runs it on a build, test_packages_slow.sh on a wheel.

    python3 tests/python/check_module.py --czero PROGRAM --fixtures BUILD/fixtures
"""

import argparse
import collections
import copy
import copyreg
import ctypes
import ctypes.util
import dataclasses
import datetime
import decimal
import fractions
import gc
import http
import json
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
import unittest
import uuid
from pathlib import Path

import numpy

import czero
from czero import _library

parser = argparse.ArgumentParser()
parser.add_argument("--czero", default="czero")
parser.add_argument("--fixtures", type=Path, required=True)
ARGS, REST = parser.parse_known_args()
ROOT = Path(__file__).resolve().parents[2]


def config(**changes):
    base = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
    return {**base, **changes}


def batch(seed, rows=4, length=16):
    return numpy.random.default_rng(seed).integers(0, 256, (rows, length))


def read_safetensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    types = {"F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16, "I64": numpy.int64,
             "BOOL": numpy.bool_, "U8": numpy.uint8}
    tensors = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            data = numpy.frombuffer(raw[8 + n + begin:8 + n + end], types[t["dtype"]])
            tensors[name] = data.reshape(t["shape"])
    return tensors


class Folder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="czero-python-")
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def engine(self, **arguments):
        arguments = {"model": "gpt2-tiny", "config": config(), "seq_len": 16, **arguments}
        made, optimizer, loader, schedule = czero.initialize(**arguments)
        self.assertEqual((optimizer, loader, schedule), (None, None, None))
        self.addCleanup(made.destroy)
        return made

    def assert_same(self, a, b, names=None):
        for name in names if names is not None else a:
            self.assertEqual(a[name].dtype, b[name].dtype, name)
            self.assertEqual(a[name].shape, b[name].shape, name)
            self.assertEqual(a[name].tobytes(), b[name].tobytes(), name)


def train(engine, steps, first=0):
    losses = []
    for n in range(first, first + steps * engine.gradient_accumulation_steps()):
        ids = batch(n)
        loss = engine(ids, labels=ids)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


class Structs(unittest.TestCase):
    def test_structs_are_the_beginning_of_the_compilers(self):
        lines = ["#include <czero/czero.h>", "#include <stdio.h>", "int main(void) {"]
        want = []
        for name, struct in _library.STRUCTS.items():
            fields = struct._fields_
            lines += [f'printf("%zu\\n", offsetof(struct {name}, {field}));' for field, _ in fields]
            want += [getattr(struct, field).offset for field, _ in fields]
            # A newer header may append members to structs that know their size, and only to them.
            relation = "<=" if fields[0][0] == "size" else "=="
            lines.append(f'printf("%d\\n", {ctypes.sizeof(struct)} {relation} sizeof(struct {name}));')
            want.append(1)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "layout.c")
            source.write_text("\n".join(lines + ["}"]))
            try:
                subprocess.run(["cc", "-I", ROOT / "include", source, "-o", f"{folder}/layout"],
                               check=True)
            except FileNotFoundError:
                self.skipTest("no compiler")
            out = subprocess.run([f"{folder}/layout"], check=True, capture_output=True, text=True)
        self.assertEqual([int(line) for line in out.stdout.split()], want)

    def test_all_calls_are_public(self):
        exports = (ROOT / "api/exports.txt").read_text().split()
        self.assertLessEqual(set(_library._CALLS), set(exports))
        version = re.search(r"VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text().partition("project(")[2])
        self.assertEqual(czero.__version__, version[1])


class Training(Folder):
    def test_loss_falls_and_counters_follow(self):
        engine = self.engine()
        self.assertIsNone(engine.get_global_grad_norm())
        ids = batch(0)
        losses = []
        for n in range(8):
            self.assertEqual(engine.is_gradient_accumulation_boundary(), n % 2 == 1)
            loss = engine({"input_ids": ids, "labels": ids})
            self.assertIsInstance(loss, numpy.float32)
            engine.backward(loss)
            engine.step()
            losses.append(loss)
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertEqual((engine.global_steps, engine.micro_steps, engine.global_samples), (4, 8, 32))
        self.assertEqual((engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(),
                          engine.gradient_accumulation_steps()), (8, 4, 2))
        self.assertEqual((engine.world_size, engine.global_rank, engine.skipped_steps), (1, 0, 0))
        self.assertTrue(engine.was_step_applied())
        self.assertEqual(engine.get_lr(), [0.01])
        self.assertGreater(engine.get_global_grad_norm(), 0)

    def test_loss_is_that_of_the_logits_and_the_next_tokens(self):
        engine = self.engine().eval()
        ids = batch(1)
        mask = numpy.ones_like(ids)
        labels = ids.copy()
        mask[0, 10:] = 0
        labels[0, 10:] = -100
        loss = engine(ids, labels, attention_mask=mask)
        logits = engine.predict(ids, attention_mask=mask).astype(numpy.float64)
        self.assertEqual(logits.shape, (4, 16, 256))
        terms = []
        for row in range(4):
            for t in range(15):
                if labels[row, t + 1] >= 0:
                    z = logits[row, t] - logits[row, t].max()
                    terms.append(numpy.log(numpy.exp(z).sum()) - z[labels[row, t + 1]])
        self.assertAlmostEqual(loss.item(), numpy.mean(terms), places=4)
        self.assertEqual(engine.micro_steps, 0)

    def test_a_resumed_run_has_the_same_bits(self):
        whole, first, second = self.engine(), self.engine(), self.engine(seed=7)
        losses = train(whole, 4)
        self.assertEqual(train(first, 2), losses[:4])
        self.assertTrue(first.save_checkpoint(self.folder, client_state={"epoch": 3, "note": "ä"}))
        where, state = second.load_checkpoint(self.folder)
        self.assertEqual(where, str(self.folder / "global_step2"))
        self.assertEqual(state, {"epoch": 3, "note": "ä"})
        self.assertEqual(train(second, 2, first=4), losses[4:])
        self.assert_same(whole.state_dict(), second.state_dict())
        self.assert_same(first.state_dict(), czero.load_state_dict_from_zero_checkpoint(self.folder),
                         first.parameter_names())

    def test_single_tensors(self):
        engine = self.engine(freeze="wpe")
        name = "transformer.h.0.ln_1.weight"
        self.assertIn("transformer.wpe.weight", engine.parameter_names())
        self.assertNotIn("transformer.wpe.weight", engine.parameter_names(trainable_only=True))
        value = numpy.linspace(0, 1, engine.get_parameter(name).size)
        engine.set_parameter(name, value)
        numpy.testing.assert_array_equal(engine.get_parameter(name), value.astype(numpy.float32))
        engine.backward(engine(batch(0), batch(0)))
        self.assertGreater(abs(engine.get_parameter(name, "grad")).max(), 0)
        engine.step()
        engine.set_lr(0.5)
        self.assertEqual(engine.get_lr(), [0.5])

    def test_classifiers_have_a_label_for_each_row(self):
        engine = self.engine(model="bert-tiny", task="classification", labels=["no", "yes"])
        ids, labels = batch(0), numpy.array([0, 1, 1, 0])
        losses = []
        for _ in range(8):
            losses.append(engine(ids, labels, token_type_ids=numpy.zeros_like(ids)))
            engine.backward()
            engine.step()
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(engine.predict(ids).shape, (4, 2))

    def test_labels_that_do_not_count(self):
        none = numpy.full((4, 16), -100)
        some = none.copy()
        some[3, 15] = 5  # of the last token alone

        def one(engine, labels):
            loss = engine(batch(0), labels)
            engine.backward()
            engine.step()
            return loss

        for use in (one, lambda e, y: e.eval()(batch(0), y),
                    lambda e, y: e.train_batch([(batch(0), y), (batch(1), y)])):
            engine = self.engine()
            with self.assertLogs("czero", "WARNING") as logged:
                _library.log.warning("before")
                self.assertGreater(use(engine, some), 0)
                self.assertEqual(len(logged.output), 1)
                engine = self.engine()
                self.assertEqual(use(engine, none), 0)
                self.assertEqual(use(engine, none), 0)
            self.assertEqual(len(logged.output), 2, logged.output)
            self.assertRegex(logged.output[1], "step 1(, evaluation)?: no label of a micro-batch counts .*loss is 0")
        engine = self.engine()  # an evaluation that warned leaves the warning of the training to come
        with self.assertLogs("czero", "WARNING") as logged:
            engine.eval()(batch(0), none)
            one(engine.train(), none)
        self.assertEqual(len(logged.output), 2, logged.output)
        engine = self.engine(model="bert-tiny", task="classification", labels=["no", "yes"])
        with self.assertLogs("czero", "WARNING") as logged:
            self.assertEqual(engine(batch(0), [-100] * 4), 0)
        self.assertEqual(len(logged.output), 1)

    def test_exports(self):
        engine = self.engine(config=config(bf16={"enabled": True}))
        engine.export_hf(self.folder / "hf", dtype="bf16")
        self.assertTrue(engine.save_16bit_model(self.folder))
        self.assertTrue((self.folder / "pytorch_model.bin").exists())
        again = self.engine(model=self.folder / "hf")
        name = "transformer.wte.weight"
        difference = abs(engine.get_parameter(name) - again.get_parameter(name)).max()
        self.assertLess(difference, 1e-3)

    def test_adapters(self):
        one = {"lora": {"rank": 2, "targets": ["c_attn"], "dora": True}}
        engine = self.engine(config=config(czero=one))
        name = "transformer.h.0.attn.c_attn.lora_A.weight"
        engine(batch(0), batch(0))
        engine.backward()
        engine.export_hf(self.folder / "adapter")
        again = self.engine(adapter=self.folder / "adapter")
        self.assertTrue((engine.get_parameter(name) == again.get_parameter(name)).all())
        self.assertFalse(list((self.folder / "adapter").glob("model*")))

    def test_whole_steps(self):
        with self.engine() as engine:
            train(engine, 3)
            want = engine.state_dict()
        for trains_batches in (False, True):
            order = "layers" if trains_batches else "micro_batches"
            engine = self.engine(trains_batches=trains_batches,
                                 config=config(czero={"accumulation_order": order}))
            batches = iter([(batch(n), batch(n)) for n in range(4)])
            first = engine.train_batch(batches)
            self.assertIsInstance(first, numpy.float32)
            self.assertLess(engine.train_batch(batches), first)
            with self.assertRaises(StopIteration):
                engine.train_batch(batches)
            ids = [batch(4), batch(5)]
            calls = []

            def fails():
                calls.append(1)
                if len(calls) == 2:
                    raise KeyError("no such row")
                return {"input_ids": ids[0], "labels": ids[0]}

            with self.assertRaisesRegex(KeyError, "no such row"):
                engine.train_batch(fails)
            with self.assertRaisesRegex(ValueError, "shape"):
                engine.train_batch([(ids[0], ids[0]), (ids[1], ids[1][:1])])
            self.assertEqual((engine.global_steps, engine.micro_steps), (2, 4))
            engine.train_batch([{"input_ids": x, "labels": x} for x in ids])
            self.assertEqual((engine.global_steps, engine.micro_steps), (3, 6))
            for name, value in engine.state_dict().items():
                self.assertTrue(numpy.array_equal(value, want[name]), name)
            engine.destroy()

    def test_mistakes_are_exceptions(self):
        engine = self.engine()
        ids = batch(0)
        for error, arguments in ((ValueError, (ids[0], ids[0])), (ValueError, (ids, ids[:2])),
                                 (ValueError, (ids + 2**40, ids)), (ValueError, (ids + 0.5, ids)),
                                 (czero.InvalidError, (ids + 256, ids)),
                                 (czero.InvalidError, (batch(0, rows=5), batch(0, rows=5)))):
            with self.assertRaises(error):
                engine(*arguments)
        with self.assertRaisesRegex(czero.InvalidError, "forward"):
            engine.backward()
        loss = engine(ids, ids)
        with self.assertRaisesRegex(ValueError, "last forward"):
            engine.backward(2 * loss)
        with self.assertRaises(KeyError):
            engine.get_parameter("no.such.weight")
        with self.assertRaises(czero.NotFoundError):
            self.engine().load_checkpoint(self.folder / "nothing")
        engine.destroy()
        engine.destroy()
        with self.assertRaisesRegex(ValueError, "destroyed"):
            engine.step()
        with self.assertRaisesRegex(czero.NotFoundError, "gpt2-nano"):
            czero.initialize(model="gpt2-nano", config=config())
        with self.assertRaises(czero.InvalidError) as raised:
            czero.initialize(model="gpt2-tiny", config=config(zero_optimization={"stage": 4}))
        self.assertEqual(raised.exception.status, "CZ_INVALID")
        with self.assertRaises(ValueError):
            czero.initialize(model="gpt2-tiny", config=config(), task="regression")


class Abandoned(Folder):
    """Ctrl-C, an exception or a cell that is run again ends a step anywhere."""

    def test_whatever_follows_a_forward_works(self):
        ids = batch(0)
        want = None
        for use in (lambda e: e(ids, ids), lambda e: e.predict(ids), lambda e: e.hidden(ids),
                    lambda e: e.eval()(ids, ids), lambda e: e.eval_batch([(ids, ids)] * 2),
                    lambda e: e.save_checkpoint(self.folder), lambda e: e.save_16bit_model(self.folder),
                    lambda e: e.export_hf(self.folder / "hf"), lambda e: e.load_checkpoint(self.folder),
                    lambda e: e.set_parameter("transformer.ln_f.bias", numpy.zeros(64)),
                    lambda e: e.zero_grad(), lambda e: None):
            engine = self.engine()
            loss = engine(batch(1), batch(1))
            use(engine)
            engine.train().zero_grad()
            with self.assertRaisesRegex(czero.InvalidError, r"backward\(\) needs a forward\(\) before it"):
                engine.backward()
            self.assertEqual(engine.micro_steps, 0)
            losses = train(engine, 2)
            want = want or losses
            self.assertEqual(losses, want)
            del loss
        engine = self.engine()
        engine(batch(1), batch(1))
        self.assertGreater(engine.train_batch([(ids, ids)] * 2), 0)
        self.assertEqual(engine.global_steps, 1)

    def test_what_is_dropped_is_said_under_pythons_names(self):
        engine = self.engine()
        ids = batch(0)
        with self.assertLogs("czero", "WARNING") as logged:
            for _ in range(3):
                loss = engine(ids, ids)
            engine.predict(ids)
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], r"another forward\(\) drops the training forward.*call eval\(\)")
        with self.assertRaisesRegex(czero.InvalidError, "dropped for an evaluation"):
            engine.backward(loss)
        engine.backward(engine(ids, ids))
        engine.step()
        loss = engine(ids, ids)
        for use in (lambda: engine.predict(ids), lambda: engine.save_checkpoint(self.folder),
                    lambda: engine.train_batch([(ids, ids)] * 2)):
            with self.assertRaisesRegex(czero.InvalidError,
                                        r"call backward\(\) before .*, or drop the step with zero_grad\(\)"):
                use()
        with self.assertLogs("czero", "WARNING") as logged:
            engine(ids, ids)
            engine.backward()
            engine.step()
            engine.zero_grad()
            engine.backward(engine(ids, ids))
            engine.step()
            engine.zero_grad(set_to_none=True)
        self.assertRegex(logged.output[0], "drops the step, with the gradients of 1 of its micro-batches")
        self.assertRegex(logged.output[1], r"zero_grad\(\) drops the gradients of 1 micro-batches")
        self.assertEqual((len(logged.output), engine.micro_steps), (2, 0))
        engine.zero_grad()
        self.assertEqual(len(train(engine, 1)), 2)
        self.assertEqual(engine.global_steps, 1)

    def test_an_interrupt_ends_in_any_call(self):
        """Ctrl-C in the steps of a small model: the same cell runs again, and a save follows."""
        script = """if True:
            import os, signal, sys, threading, time, czero, numpy
            engine, _, _, _ = czero.initialize(model="gpt2-tiny", seq_len=16, config={
                "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
            ids = numpy.arange(64).reshape(4, 16)
            for n in range(24):
                threading.Timer(0.01 + n * 0.0011, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    try:
                        while True:
                            engine.backward(engine(ids, ids))
                            engine.step()
                    except KeyboardInterrupt:
                        pass
                    engine.predict(ids)
                    engine.zero_grad()
                    engine.save_checkpoint(sys.argv[1], tag="t")
                except KeyboardInterrupt:
                    print("late")
            print("done")
            """
        done = subprocess.run([sys.executable, "-c", script, self.folder / "run"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout.split()[-1:]), (0, ["done"]), done.stderr)

    def test_calls_of_training_in_eval_name_it(self):
        engine = self.engine().eval()
        ids = batch(0)
        loss = engine(ids, ids)
        for use in (lambda: engine.backward(loss), engine.backward, engine.step):
            with self.assertRaisesRegex(czero.InvalidError, r"the engine is in eval\(\): call engine.train\(\)"):
                use()
        loss = engine.train()(ids, ids)
        engine.eval().backward(loss)  # that forward was one of training
        engine.step()
        self.assertEqual(engine.micro_steps, 1)
        engine.train()(ids, ids)
        with self.assertRaisesRegex(czero.InvalidError, "gradients"):
            engine.eval()(ids, ids)  # a micro-batch of its step has some
        engine.backward()
        engine.step()
        engine.train()(ids, ids)
        loss = engine.eval()(ids, ids)
        with self.assertRaisesRegex(czero.InvalidError, "call engine.train"):
            engine.backward(loss)
        engine.destroy()
        with self.assertRaisesRegex(czero.InvalidError, "was destroyed$"):
            engine.step()


class Ported(Folder):
    """What programs written for DeepSpeed, torch and transformers pass."""

    def test_initialize_names_all_at_once(self):
        class Module:
            def parameters(self):
                return [1]

        module = Module()
        for arguments, parts in (
                (dict(model=module, model_parameters=module.parameters(), optimizer=5, config=config()),
                 ("model is a Module, and czero takes a folder: model.save_pretrained", "freeze=", '"optimizer"')),
                (dict(config=config(), training_data=[1], seq_length=5),
                 ("model is missing", "train_batch", "it has no argument seq_length")),
                (dict(model="gpt2-tiny", lr_scheduler=1, mpu=1),
                 ("config: a file or a dictionary is needed, not None", '"scheduler"', "data-parallel"))):
            with self.assertRaises(TypeError) as raised:
                czero.initialize(**arguments)
            for part in parts:
                self.assertIn(part, str(raised.exception))
        with self.assertRaisesRegex(TypeError, "keywords alone: model=folder, config="):
            czero.initialize("gpt2-tiny", config())
        path = self.folder / "ds.json"
        path.write_text(json.dumps(config()))
        nothing = {"optimizer": None, "model_parameters": None, "training_data": None, "lr_scheduler": None,
                   "mpu": None, "dist_init_required": True, "collate_fn": None}
        for arguments in ({"config_params": config()},
                          {"args": argparse.Namespace(deepspeed_config=str(path), local_rank=0)},
                          {"args": argparse.Namespace(local_rank=0), "config_params": path}):
            self.assertEqual(self.engine(config=None, **nothing, **arguments).get_lr(), [0.01])
        with self.assertRaisesRegex(AttributeError, "init_distributed.*: initialize"):
            czero.init_distributed  # pylint: disable=expression-not-assigned
        with self.assertRaisesRegex(AttributeError, "'nothing'$"):
            czero.nothing  # pylint: disable=expression-not-assigned

    def test_options_have_their_types(self):
        for error, arguments, part in (
                (TypeError, {"seq_len": 32.0}, "seq_len: an integer is needed, not 32.0"),
                (TypeError, {"seq_len": True}, "seq_len"), (TypeError, {"seq_len": "16"}, "seq_len"),
                (ValueError, {"seq_len": 0}, "seq_len 0"), (ValueError, {"seq_len": 2**63}, "seq_len"),
                (ValueError, {"seed": -1}, "seed -1"), (ValueError, {"seed": 2**64}, "seed"),
                (TypeError, {"total_steps": 1e3}, "total_steps"), (ValueError, {"total_steps": -1}, "total_steps"),
                (TypeError, {"device": 0}, 'device: "cpu"'), (TypeError, {"labels": "ab"}, "labels 'ab'"),
                (czero.InvalidError, {"freeze": "zzz"}, 'freeze "zzz": no parameter of .* has such a name')):
            with self.assertRaisesRegex(error, part):
                self.engine(**arguments)
        self.engine(seq_len=numpy.int64(16), seed=2**64 - 1, total_steps=numpy.int32(0))
        kind = type("device", (), {"__module__": "torch", "__str__": lambda _: "cpu"})
        self.engine(device=kind())
        with self.assertRaisesRegex(ValueError, "world_size 0"):
            czero.plan("gpt2-tiny", config(), world_size=0)
        with self.assertRaisesRegex(czero.InvalidError, "^config: optimizer.params.lr: a number"):
            self.engine(config=config(optimizer={"type": "AdamW", "params": {"lr": "1e-3"}}))

    def test_rates(self):
        engine = self.engine()
        for bad in (float("nan"), float("inf"), -1e-9, [-1.0]):
            with self.assertRaisesRegex(czero.InvalidError, "a learning rate of .*: a number from 0 on"):
                engine.set_lr(bad)
        for bad in ("1e-3", b"1", None, [1e-3, 1e-3], [], ["1"]):
            with self.assertRaisesRegex(TypeError, r"set_lr\(.*\): a number is needed"):
                engine.set_lr(bad)
        self.assertEqual(engine.get_lr(), [0.01])
        for good in (0, numpy.float32(0.5), [0.25], numpy.array(0.125)):
            engine.set_lr(good)
        engine.set_lr(engine.get_lr())
        self.assertEqual(engine.get_lr(), [0.125])

    def test_values_that_are_not_finite_are_said(self):
        engine = self.engine()
        name = "transformer.ln_f.bias"
        with self.assertLogs("czero", "WARNING") as logged:
            engine.set_parameter(name, numpy.full(64, numpy.nan))
        self.assertRegex(logged.output[0], f"{name}: element 0 of weight is set to nan")

    def test_batches(self):
        engine = self.engine()
        ids = batch(0)
        row = {"input_ids": ids, "labels": ids}
        for error, use, part in (
                (TypeError, lambda: engine(ids), r"needs labels: for logits call predict\(\)"),
                (TypeError, lambda: engine({"input_ids": ids}), "needs labels"),
                (TypeError, lambda: engine({**row, "text": 1, "idx": 2}),
                 "input_ids, labels, attention_mask, .*, not text, idx: leave them out"),
                (TypeError, lambda: engine.predict(**row), r"predict\(\) takes input_ids, att.*, not labels"),
                (TypeError, lambda: engine.hidden(row), r"hidden\(\) takes .*, not labels"),
                (TypeError, lambda: engine([["a"]], ids), "input_ids: numbers are needed"),
                (ValueError, lambda: engine([[1, 2], [3]], ids), "input_ids: "),
                (ValueError, lambda: engine(ids, [[None] * 16] * 4), "labels: nan at"),
                (TypeError, lambda: engine(numpy.ma.array(ids), ids), "input_ids: a masked array"),
                (ValueError, lambda: engine(ids, ids, numpy.full(ids.shape, 0.5)), "attention_mask: 0.5 at"),
                (ValueError, lambda: engine(ids, ids, ids * 0 + 2), "attention_mask: 0 and 1"),
                (ValueError, lambda: engine(ids, ids, ids * 0 - 1), "attention_mask: 0 and 1"),
                (ValueError, lambda: engine(numpy.where(ids == ids[1, 2], 2**40, ids), ids), "no integer of 32"),
                (TypeError, lambda: engine.train_batch(), r"train_batch\(\) needs data"),
                (TypeError, lambda: engine.train_batch(row), r"this dict is one: pass \[batch\]"),
                (TypeError, lambda: engine.train_batch(ids), r"this ndarray is one: pass \[batch\]"),
                (TypeError, lambda: engine.train_batch(5), "an iterator of micro-batches or a function, not int"),
                (TypeError, lambda: engine.train_batch([ids]), "a micro-batch is a dictionary, or a tuple"),
                (TypeError, lambda: engine.train_batch([(ids,)]), "a micro-batch is a dictionary"),
                (TypeError, lambda: engine.train_batch([{**row, "text": 1}]), "a micro-batch takes .*, not text"),
                (TypeError, lambda: engine.train_batch([{"input_ids": ids}]), "a micro-batch needs labels"),
                (TypeError, lambda: engine.eval_batch(row), r"eval_batch\(\): data gives micro-batches"),
                (StopIteration, lambda: engine.eval_batch([(ids, ids)]), "")):
            with self.assertRaisesRegex(error, part):
                use()
        self.assertEqual(engine.micro_steps, 0)
        self.assertEqual(engine.forward(row), engine.forward(ids.astype(object), labels=ids.tolist()))
        self.assertGreater(engine.train_batch(data_iter=iter([row, row])), 0)
        both = engine.eval_batch(iter([row, (batch(1), batch(1))]))
        losses = [engine.eval()(batch(n), batch(n)) for n in range(2)]
        self.assertAlmostEqual(both, sum(losses) / 2, places=5)
        self.assertTrue((engine.predict({"input_ids": ids}) == engine.predict(ids)).all())
        self.assertTrue((engine.hidden({"input_ids": ids}, pool="cls") == engine.hidden(ids, pool="cls")).all())
        self.assertEqual((engine.micro_steps, engine.global_steps), (2, 1))
        engine = self.engine(model="bert-tiny", task="classification", labels=["no", "yes"])
        self.assertEqual(engine(ids, [0, 1, 1, 0]), engine(ids, [[0], [1], [1], [0]]))

    def test_names_and_looks(self):
        engine = self.engine()
        train(engine, 1)
        self.assertRegex(repr(engine), r"^<czero.Engine gpt2-tiny, step 1, \d+ parameters>$")
        for use in (lambda: engine.get_parameter("transformer.ln_f.bia"),
                    lambda: engine.set_parameter("transformer.ln_f.bia", [1])):
            for kind in (czero.NotFoundError, KeyError):
                with self.assertRaisesRegex(kind, "^no parameter .*did you mean 'transformer.ln_f.bias'"):
                    use()
        engine.save_checkpoint(self.folder / "a")
        self.assert_same(czero.get_fp32_state_dict_from_zero_checkpoint(self.folder / "a"),
                         czero.load_state_dict_from_zero_checkpoint(self.folder / "a"))
        shown = subprocess.run([ARGS.czero, "inspect", self.folder / "a"], capture_output=True, text=True)
        self.assertRegex(shown.stdout, "optimizer .*; 1 updates\n")
        self.assertNotIn("step 0", shown.stdout)
        (self.folder / "ds.json").write_text("{}")
        with self.assertRaisesRegex(czero.InvalidError, "is a file; a folder of checkpoints"):
            engine.load_checkpoint(self.folder / "ds.json")
        with self.assertRaisesRegex(czero.InvalidError, "'global_steps', which the checkpoint"):
            engine.save_checkpoint(self.folder / "new", client_state={"global_steps": 3})
        self.assertFalse((self.folder / "new").exists())
        engine.destroy()
        self.assertEqual(repr(engine), "<czero.Engine, destroyed>")
        self.assertFalse(hasattr(engine, "global_steps"))
        with self.assertRaisesRegex(czero.InvalidError, "was destroyed"):
            engine.global_steps  # pylint: disable=pointless-statement
        self.assertEqual(repr(czero.Engine.__new__(czero.Engine)), "<czero.Engine>")

    def test_sentences_keep_the_names_of_files(self):
        for raw, want in ((b"runs/engine_step/x: bad", "runs/engine_step/x: bad"),
                          (b"engine_step.json: bad", "engine_step.json: bad"),
                          (b"an engine_forward before engine_step", "a forward() before step()"),
                          (b"an engine_eval, engine_predict()", "an eval(), predict()"),
                          (b"engine_initialize needs", "czero.initialize() needs"),
                          (b"engine_nothing", "engine_nothing"), (b"<memory>:1:12: x", "config: x"),
                          (b"call engine_discard_step.", "call zero_grad().")):
            self.assertEqual(_library.said(raw), want)

    def test_tokenizers_names(self):
        tokenizer = czero.Tokenizer(ARGS.fixtures / "embed")
        self.assertEqual(tokenizer.encode("no"), tokenizer("no")["input_ids"][0].tolist())
        self.assertEqual(tokenizer.encode("no", "no"), tokenizer("no", "no")["input_ids"][0].tolist())
        self.assertEqual(len(tokenizer.encode("no no no", max_length=4)), 4)
        self.assertEqual(tokenizer.batch_decode([[104, 105]] * 2), [tokenizer.decode([104, 105])] * 2)
        self.assertEqual(tokenizer.pad_token_id, 0)
        self.assertIn(tokenizer.eos_token_id, (None, *range(len(tokenizer))))
        tokenizer(["a"], padding="longest", truncation=True, return_tensors="np")
        for error, use, part in (
                (TypeError, lambda: tokenizer(["a", None]), "text 1: a string is needed, not NoneType"),
                (TypeError, lambda: tokenizer(["a", "b"], ["c", None]), "pair 1: a string is needed"),
                (TypeError, lambda: tokenizer(None), ""), (ValueError, lambda: tokenizer([]), "at least one"),
                (TypeError, lambda: tokenizer.encode(["a"]), "one text, not list"),
                (TypeError, lambda: tokenizer.decode([[1]]), "batch_decode"),
                (TypeError, lambda: tokenizer.decode([1.5]), "batch_decode"),
                (TypeError, lambda: tokenizer("a", max_length=4.0), "max_length: an integer"),
                (ValueError, lambda: tokenizer("a", padding="max_length"), "padding=True"),
                (ValueError, lambda: tokenizer("a", truncation=False), "truncation=True"),
                (ValueError, lambda: tokenizer("a", return_tensors="pt"), 'return_tensors "pt"')):
            with self.assertRaisesRegex(error, part):
                use()

    def test_the_library_is_found_or_its_place_asked_for(self):
        def load(value):
            environment = {**os.environ, "CZERO_LIBRARY": str(value)}
            return subprocess.run([sys.executable, "-c", "import czero; print(czero._library.C._name)"],
                                  capture_output=True, text=True, env=environment)

        file = Path(_library.C._name)
        if not os.environ.get("CZERO_LIBRARY"):
            self.skipTest("the library of a wheel or of the system")
        prefix = self.folder / "prefix"
        (prefix / "lib").mkdir(parents=True)
        (prefix / "lib" / "libczero.so.0").symlink_to(file.resolve())
        debian = self.folder / "usr"
        (debian / "lib" / "some-linux").mkdir(parents=True)
        (debian / "lib" / "some-linux" / "libczero.so.0").symlink_to(file.resolve())
        for value in (file, prefix, prefix / "lib", debian):
            done = load(value)
            self.assertEqual(done.returncode, 0, done.stderr)
        empty = self.folder / "empty"
        empty.mkdir()
        other = ctypes.util.find_library("m")
        for value, part in ((empty, "the folder has no libczero.so.0"), (self.folder / "no.so", "Set CZERO_LIBRARY"),
                            (other, "another version than this module")):
            done = load(value)
            self.assertRegex(done.stderr, f"ImportError: .*{part}")
            self.assertIn(str(value), done.stderr)


class Objects(Folder):
    """Objects of Python over the library's: never two over one, never one over none."""

    def test_nothing_copies_an_engine(self):
        engine = self.engine()
        ways = [copy.copy, copy.deepcopy, lambda e: copy.deepcopy({"model": [e]}),
                lambda e: copyreg.__reduce_ex__(e, 2),
                lambda e: e.__reduce__(), lambda e: dataclasses.replace(e),
                lambda e: getattr(copy, "replace", copy.copy)(e)]
        ways += [lambda e, n=n: pickle.dumps(e, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)]
        for owner in (engine, engine._handle):
            for way in ways:
                with self.assertRaises(TypeError):
                    way(owner)
        for way in (copy.copy, lambda e: copy.deepcopy(vars(e))):
            with self.assertRaisesRegex(TypeError, "cannot be copied"):
                way(engine)
        train(engine, 1)

    def test_objects_without_an_engine_say_so(self):
        for made in (lambda: czero.Engine(5), lambda: czero.Engine(None),
                     lambda: czero.Engine.__new__(czero.Engine).step(),
                     lambda: copyreg.__newobj__(czero.Engine).global_steps):
            with self.assertRaisesRegex(TypeError, "czero.initialize"):
                made()
        czero.Engine.__new__(czero.Engine).destroy()

    def test_objects_that_share_an_engine_end_with_it(self):
        engine = self.engine()
        other = czero.Engine.__new__(czero.Engine)
        other.__dict__.update(engine.__dict__)
        engine.destroy()
        for use in (lambda: other(batch(0), batch(0)), lambda: other.global_steps,
                    lambda: other.get_lr(), other.state_dict, other.step,
                    lambda: other.save_checkpoint(self.folder),
                    lambda: other.load_checkpoint(self.folder)):
            with self.assertRaisesRegex(RuntimeError, "destroyed"):
                use()
        other.destroy()
        del other
        gc.collect()

    def test_results_outlive_their_engine(self):
        engine = self.engine()
        logits, weights = engine.predict(batch(0)), engine.state_dict()
        want = logits.copy(), {name: weight.copy() for name, weight in weights.items()}
        engine.destroy()
        del engine
        gc.collect()
        self.engine()
        self.assertTrue(numpy.array_equal(logits, want[0]))
        self.assert_same(weights, want[1])

    def test_a_fork_does_not_use_its_parents_engine(self):
        engine = self.engine()
        train(engine, 1)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for use in (lambda: engine(batch(0), batch(0)), lambda: engine.global_steps,
                        lambda: czero.initialize(model="gpt2-tiny", config=config())):
                try:
                    said.append(repr(use()))
                except RuntimeError as error:
                    said.append(str(error))
            engine.destroy()
            os.write(write, json.dumps(said).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = json.loads(pipe.read())
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(said), 3)
        for sentence in said:
            self.assertRegex(sentence, "process.*spawn")
        train(engine, 1)  # the child took nothing away

    def test_calls_within_a_call(self):
        engine = self.engine()
        ids = batch(0)
        said = []

        def data():
            for use in (engine.step, engine.destroy, lambda: engine.predict(ids)):
                try:
                    use()
                except RuntimeError as error:
                    said.append(str(error))
            said.append(engine.global_steps)
            return ids, ids

        def other_thread():
            thread = threading.Thread(target=data)
            thread.start()
            thread.join()
            return ids, ids

        for take in (data, other_thread):
            engine = self.engine()
            engine.train_batch(take)
            for step, end, look, n in zip(said[::4], said[1::4], said[2::4], said[3::4]):
                self.assertRegex(step, "another call")
                self.assertRegex(end, "after the call")
                self.assertRegex(look, "another call")
                self.assertEqual(n, 0)
            self.assertEqual(len(said), 8)
            said.clear()

    def test_an_exit_during_a_call(self):
        script = self.folder / "exit.py"
        script.write_text(textwrap.dedent("""
            import threading, numpy, czero
            engine = czero.initialize(model="gpt2-tiny", seq_len=16, config={
                "train_micro_batch_size_per_gpu": 2,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})[0]
            ids = numpy.zeros((2, 16), int)
            began = threading.Event()
            def work():
                while True:
                    engine.train_batch(iter([(ids, ids)]))
                    began.set()
            threading.Thread(target=work, daemon=True).start()
            began.wait()
        """))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_names_with_a_nul(self):
        engine = self.engine()
        for use in (lambda: engine.save_checkpoint(f"{self.folder}/a\0b"),
                    lambda: engine.save_checkpoint(self.folder, tag="a\0b"),
                    lambda: engine.export_hf(f"{self.folder}/a\0b"),
                    lambda: self.engine(model="gpt2-tiny\0x"),
                    lambda: self.engine(freeze="wpe\0x"),
                    lambda: self.engine(model="bert-tiny", task="classification",
                                        labels=["a", "b\0c"])):
            with self.assertRaisesRegex(ValueError, "NUL"):
                use()
        self.assertEqual(list(self.folder.iterdir()), [])


def same(a, b):
    """Equal, of one type, with the signs of zeros, NaN, orders of dictionaries and dtypes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, numpy.ndarray):
        return (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
                and (a.flags.f_contiguous or not b.flags.f_contiguous or a.ndim < 2))
    if isinstance(a, numpy.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return (getattr(a, "default_factory", 0) is getattr(b, "default_factory", 0)
                and same(list(a.items()), list(b.items())))
    if isinstance(a, (list, tuple, collections.deque)):
        return (len(a) == len(b) and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
                and all(map(same, a, b)))
    if isinstance(a, (argparse.Namespace, types.SimpleNamespace)):
        return same(vars(a), vars(b))
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else a == b


class Own:
    """A class of a program."""


class ClientState(Folder):
    VALUES = {
        "none": None, "bools": [True, False], "ints": [0, -1, 2**63 - 1, 2**63, -2**63, -2**63 - 1,
                                                       2**64, 2**127 + 5, -2**2100, 10**30],
        "floats": [0.0, -0.0, 1.5, float("inf"), -float("inf"), float("nan"), 5e-324],
        "complex": [1 + 2j, complex(-0.0, float("inf"))],
        "texts": ["", "ä\U0001f600", "a\0b", "\ud800", "x" * 300], "bytes": [b"", b"\0\xff\xe4" * 100],
        "bytearray": [bytearray(), bytearray(b"\xff\0")], "tuple": (1, (2, ("a",)), ()),
        "list": [[], [[]], list(range(2500))], "sets": [set(), {1, "a", (2, 3)}, frozenset({None})],
        "dict": {1: 0.5, (1, 2): "b", None: 3, b"k": 4, True: 5, 2.5: {}, frozenset({1}): 6,
                 "module": "of the user", 2**70: 7},
        "range": range(3, 10, 2), "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "default": [collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {2: 3})],
        "counter": collections.Counter("hello"),
        "deque": [collections.deque([1, 2.5], maxlen=3), collections.deque()],
        "times": [datetime.datetime(2026, 11, 27, 20, 1, 2, 3), datetime.date(1, 1, 1),
                  datetime.time(23, 59, 59, 999999), datetime.timedelta(-1, 5, 7),
                  datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), datetime.timezone.utc],
        "exact": [decimal.Decimal("1.10"), fractions.Fraction(-1, 3), uuid.UUID(int=7)],
        "paths": [Path("/a/b"), pathlib.PurePosixPath("c"), pathlib.PureWindowsPath("d:/e")],
        "names": [argparse.Namespace(lr=1e-4, tags=("a",)), types.SimpleNamespace(x=[1]),
                  argparse.Namespace()],
        "scalars": [numpy.float32(0.1), numpy.float64("inf"), numpy.float16(-0.0), numpy.int8(-5),
                    numpy.uint64(2**64 - 1), numpy.bool_(True), numpy.complex64(1j),
                    numpy.datetime64("2026-11-27"), numpy.timedelta64(5, "ms"), numpy.str_("ä"),
                    numpy.bytes_(b"x"), numpy.str_(""), numpy.longdouble("0.1")],
        "arrays": [numpy.arange(6.0).reshape(2, 3), numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
                   numpy.array(5), numpy.empty((0, 3), numpy.int16), numpy.array(["a", "äöü"]),
                   numpy.array([b"ab", b"c"]), numpy.arange(3, dtype=">i4"), numpy.zeros(2, bool),
                   numpy.array(["2026-11-27T20", "NaT"], "datetime64[25m]"),
                   numpy.arange(20, dtype=numpy.uint8)[::3], numpy.array([1 + 2j], numpy.complex64)],
        "generators": [numpy.random.PCG64(1).state, numpy.random.MT19937(1).state,
                       numpy.random.Philox(1).state, numpy.random.SFC64(1).state,
                       numpy.random.RandomState(3).get_state(), random.Random(4).getstate()],
        5: "an integer", ("a", 1): "a tuple", None: "none",
    }

    def save(self, state, engine=None, tag="t"):
        engine = engine or self.engine()
        engine.save_checkpoint(self.folder, tag=tag, client_state=state)
        return engine.load_checkpoint(self.folder, tag=tag)[1]

    def test_what_comes_back_is_what_was_given(self):
        back = self.save(self.VALUES)
        self.assertEqual(list(back), list(self.VALUES))
        for name, value in self.VALUES.items():
            self.assertTrue(same(value, back[name]), f"{name}: {value!r} came back as {back[name]!r}")

    def test_other_stages_and_ends(self):
        for stage in (0, 1, 3):
            engine = self.engine(config=config(zero_optimization={"stage": stage}))
            state = {"loss": train(engine, 1)[0], "n": 2**64}
            self.assertEqual(self.save(state, engine), state)
        for nothing in (None, {}, types.MappingProxyType({})):
            self.assertEqual(self.save(nothing, engine), {})
        self.assertEqual(self.save(types.MappingProxyType({"a": 1}), engine), {"a": 1})

    def test_a_generator_goes_on(self):
        first = numpy.random.Generator(numpy.random.PCG64(9))
        first.random(3)
        python = random.Random(2)
        back = self.save({"rng": first.bit_generator.state, "python": python.getstate()})
        second = numpy.random.Generator(numpy.random.PCG64())
        second.bit_generator.state = back["rng"]
        self.assertEqual(first.random(4).tolist(), second.random(4).tolist())
        again = random.Random()
        again.setstate(back["python"])
        self.assertEqual(python.random(), again.random())

    def test_others_are_refused_by_their_place(self):
        engine = self.engine()
        deep, cycle, shared = [], [], [Own()]
        for _ in range(98):  # with `deep` itself and the dictionary 100
            deep = [deep]
        cycle.append({"a": cycle})
        point = collections.namedtuple("point", "x")
        refused = [
            ({"a": [1, (2, Own())]}, r"client_state\['a'\]\[1\]\[1\]: .*Own is not stored"),
            ({"a": {Own(): 1}}, r"client_state\['a'\], key .*Own is not stored"),
            ({"f": print}, r"\['f'\]: .*function"), ({"c": Own}, r"\['c'\]: builtins.type"),
            ({"c": int}, "type"), ({"p": point(1)}, "point"), ({"m": sys}, "module"),
            ({"a": numpy.array([Own()], object)}, r"\['a'\]: an array of object"),
            ({"a": numpy.zeros(2, "i4,f4")}, r"\['a'\]: an array"), ({"a": numpy.ma.array([1])}, "Masked"),
            ({"g": numpy.random.default_rng(1)}, "Generator"), ({"r": random.Random(1)}, "Random"),
            ({"d": collections.defaultdict(lambda: 1)}, r"\['d'\]: a default"),
            ({"a": {"b": argparse.Namespace(x=[Own()])}}, r"\['a'\]\['b'\]\.x\[0\]: "),
            ({"q": collections.deque([{Own()}])}, r"\['q'\]\[0\]\[0\]"),
            ({"c": cycle}, r"\['c'\]\[0\]\['a'\]: contains itself"), ({"d": [deep]}, "nested deeper"),
            ({"a": shared, "b": shared}, r"\['a'\]\[0\]"), ({"e": engine}, "Engine"),
            ({"t": datetime.time(1, tzinfo=Zone())}, "time zone"),
            ({"e": http.HTTPStatus.OK}, "HTTPStatus"), ([1], "dictionary"), ("a", "dictionary"), (5, "dict"),
        ]
        for state, sentence in refused:
            with self.assertRaisesRegex(TypeError, sentence, msg=repr(state)[:80]):
                engine.save_checkpoint(self.folder / "no", client_state=state)
        for name in ("module", "global_steps", "ds_config", "universal_checkpoint_info"):
            with self.assertRaisesRegex(czero.InvalidError, f"'{name}', which the checkpoint"):
                engine.save_checkpoint(self.folder / "no", client_state={"a": 1, name: 1})
        self.assertFalse(list((self.folder).glob("no/*")))
        self.assertEqual(self.save({"d": deep}, engine), {"d": deep})
        wide = [[1]]
        for _ in range(90):
            wide = [wide, wide]  # 2^90 lists, if each is visited
        with self.assertRaises(czero.Error):
            engine.save_checkpoint(self.folder / "no", client_state={"w": wide})

    def test_tags(self):
        engine = self.engine()
        engine.save_checkpoint(self.folder, tag=5, client_state={"n": 1})
        for tag in (5, "5", numpy.int64(5), None):
            where, state = engine.load_checkpoint(self.folder, tag=tag)
            self.assertEqual((where, state), (str(self.folder / "5"), {"n": 1}))
        self.assertEqual(len(czero.load_state_dict_from_zero_checkpoint(self.folder, tag=5)), 29)
        for tag in (True, 1.5, b"5", ["a"], float("nan")):
            with self.assertRaisesRegex(TypeError, "tag .*string or an integer"):
                engine.save_checkpoint(self.folder, tag=tag)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["5", "latest"])

    def test_nothing_of_a_file_is_executed(self):
        """The library's pickle of a checkpoint whose client state another program made."""
        from czero import client_state

        class Bomb:
            def __init__(self, *call):
                self.call = call

            def __reduce__(self):
                return self.call

        class ShapedBomb(Bomb):
            def __reduce__(self):
                make, start, _ = numpy.zeros(0).__reduce__()
                return make, start, (1, self.call[0], numpy.dtype("f4"), False, b"")

        target = self.folder / "executed"
        bombs = {"open": Bomb(open, (str(target), "w")), "own": Own(), "ok": 1,
                 "list": Bomb(list, (range(10**12),)), "bytes": Bomb(bytearray, (10**12,)),
                 "fraction": Bomb(fractions.Fraction, ("1e1000000000",)),
                 "exact": Bomb(fractions.Fraction, (decimal.Decimal("1E+100000000"),)),
                 "long": Bomb(fractions.Fraction, (3**50000, 2**65537)),
                 "counter": Bomb(collections.Counter, (range(10**12),)),
                 "ordered": Bomb(collections.OrderedDict, (range(10**12),)),
                 "shape": ShapedBomb(range(0, 10**12)), "set": Bomb(frozenset, (range(10**12),)),
                 "getattr": Bomb(getattr, (1, "real")), "array": Bomb(numpy.ndarray, ((10**12,),)),
                 "masked": numpy.ma.array([1, 2]), "function": json.dumps, "again": [Own(), (Own(),)]}
        with self.assertLogs("czero", "WARNING") as logged:
            back = client_state.decode(pickle.dumps(bombs, 2))
        self.assertFalse(target.exists())
        self.assertEqual(back["ok"], 1)
        for name, value in back.items():
            if name not in ("ok", "again"):
                self.assertIsInstance(value, czero.UnknownObject, name)
        self.assertRegex(back["own"].name, "Own$")
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], r"client_state\['open'\] \(io.open\).*"
                                           r"client_state\['own'\] \(.*Own\).* and 7 more")
        with self.assertRaisesRegex(TypeError, "UnknownObject is not stored"):
            client_state.encode({"a": back["own"]})

    def test_places_of_keys_without_text(self):
        """Python writes no integer of more than 4300 digits, and a place may have one as its key."""
        from czero import client_state
        key = 10**5000
        with self.assertLogs("czero", "WARNING") as logged:
            back = client_state.decode(pickle.dumps({key: {1: Own()}, 2: {3: [Own()]}, 4: Own()}, 2))
        self.assertEqual(list(back), [key, 2, 4])
        self.assertRegex(logged.output[0], r"client_state\[.*\]\[1\] \(.*Own\), "
                                           r"client_state\[2\]\[3\]\[0\] \(.*Own\), "
                                           r"client_state\[4\] \(.*Own\)$")
        with self.assertRaisesRegex(TypeError, r"client_state\[.*\]\[0\]: .*Own is not stored"):
            client_state.encode({key: [Own()]})
        with self.assertRaisesRegex(TypeError, r"client_state\['a'\]\[1\]: .*Own is not stored"):
            client_state.encode({key: [1], "a": [{2: 3}, Own()]})

    def test_fractions_have_a_bound(self):
        from czero import client_state
        longest = fractions.Fraction(2**65536 - 1, 2)
        try:
            same_again = pickle.loads(pickle.dumps(longest, 2))
        except ValueError:  # Pythons that write fractions as text
            same_again = None
        if same_again is not None:
            self.assertEqual(client_state.decode(client_state.encode({"a": longest})), {"a": longest})
        for number in (fractions.Fraction(2**65536, 3), fractions.Fraction(3, 2**65536)):
            with self.assertRaisesRegex(TypeError, r"\['a'\]\[0\]: a fraction of more than 65536 bits"):
                client_state.encode({"a": [number]})

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        state = {"rng": torch.get_rng_state(), "half": torch.arange(4.0).to(torch.bfloat16),
                 "t": torch.arange(6.0).reshape(2, 3).T, "bool": torch.tensor([True]),
                 "scalar": torch.tensor(5), "none": torch.empty(0, 3), "c": torch.tensor([1j]).conj()}
        more = {"size": torch.Size([2, 3]), "dtype": torch.float16, "device": torch.device("cuda", 1)}
        engine = self.engine()
        back = self.save({**state, **more}, engine)
        for name, value in state.items():
            self.assertEqual((value.dtype, value.shape), (back[name].dtype, back[name].shape))
            self.assertTrue(torch.equal(value, back[name]), name)
        for name, value in more.items():
            self.assertEqual(value, back[name])
        torch.set_rng_state(back["rng"])
        for bad in (torch.ones(2).to_sparse(), torch.empty(2, device="meta")):
            with self.assertRaisesRegex(TypeError, r"\['a'\]\[0\]: "):
                engine.save_checkpoint(self.folder, client_state={"a": [bad]})


class Zone(datetime.tzinfo):
    """A time zone of a program."""

    def utcoffset(self, dt):
        return datetime.timedelta(0)


class Configs(Folder):
    def test_values_that_json_does_not_have(self):
        kinds = {"steps_per_print": float("inf"), "gradient_clipping": numpy.float32(0.5),
                 "train_micro_batch_size_per_gpu": numpy.int64(4), "wall_clock_breakdown": numpy.bool_(0),
                 "zero_optimization": types.MappingProxyType({"stage": numpy.uint8(1)}),
                 "optimizer": {"type": "AdamW", "params": {"lr": numpy.float64(1e-2),
                                                           "betas": (0.9, numpy.float32(0.5))}},
                 "csv_monitor": {"enabled": True, "output_path": self.folder / "csv",
                                 "job_name": numpy.str_("job")}}
        engine = self.engine(config=config(**kinds))
        self.assertEqual((engine.get_lr(), engine.train_micro_batch_size_per_gpu()), ([0.01], 4))
        train(engine, 1)
        self.assertTrue((self.folder / "csv").exists())
        self.engine(config=config(optimizer={"type": "AdamW", "params": {
            "lr": 1e-2, "betas": numpy.array([0.9, 0.95])}}))
        self.assertTrue(czero.plan("gpt2-tiny", config(steps_per_print=float("inf")), seq_len=16).fits)

    def test_other_values_are_named(self):
        params = {"lr": float("nan")}
        cycle = {}
        cycle["a"] = cycle
        for error, changes, sentence in (
                (ValueError, {"optimizer": {"type": "AdamW", "params": params}}, "optimizer.params.lr: nan"),
                (ValueError, {"steps_per_print": float("nan")}, "steps_per_print: nan"),
                (ValueError, {"steps_per_print": -float("inf")}, "steps_per_print: -inf"),
                (ValueError, {"gradient_clipping": float("inf")}, "gradient_clipping: inf"),
                (ValueError, {"a": {"steps_per_print": float("inf")}}, "a.steps_per_print: inf"),
                (ValueError, {"a": cycle}, "a.a.*nested deeper"), (TypeError, {"a": {1: 2}}, "a: the key 1"),
                (TypeError, {5: 1}, "the dictionary: the key 5"), (TypeError, {"a": [0, {1}]}, r"a\[1\]: a set"),
                (TypeError, {"a": {"b": object()}}, "a.b: a object"), (TypeError, {"a": b"x"}, "a: a bytes"),
                (TypeError, {"a": 1j}, "a: a complex")):
            for use in (lambda c: self.engine(config=c), lambda c: czero.plan("gpt2-tiny", c)):
                with self.assertRaisesRegex(error, "config: " + sentence):
                    use(config(**{str(k) if isinstance(k, str) else k: v for k, v in changes.items()})
                        if 5 not in changes else changes)
        for bad in (None, 5, [config()], {1, 2}):
            with self.assertRaisesRegex(TypeError, "config: a file or a dictionary"):
                self.engine(config=bad)

    def test_a_new_adapter(self):
        name = "transformer.h.0.attn.c_attn.lora_A.weight"
        path = self.folder / "ds.json"
        path.write_text(json.dumps(config()))
        for source in (config(), path):
            engine = self.engine(config=source, lora={"rank": 3, "targets": ["c_attn"], "alpha": 6.0})
            self.assertEqual(engine.get_parameter(name).shape[0], 3)
            self.assertEqual(len(engine.parameter_names(trainable_only=True)), 4)
        self.assertEqual(self.engine(lora={}).get_parameter(name).shape[0], 8)
        with self.assertRaisesRegex(czero.InvalidError, "rank"):
            self.engine(lora={"rank": 3}, config=config(czero={"lora": {"rank": 2}}))
        with self.assertRaisesRegex(czero.Error, "rnk"):
            self.engine(lora={"rnk": 3})
        for bad in (8, True, "rank=8"):
            with self.assertRaisesRegex(TypeError, "lora: a dictionary"):
                self.engine(lora=bad)


class Vectors(Folder):
    def texts(self):
        source = ARGS.fixtures / "embed"
        rows = [json.loads(line) for line in (source / "texts.jsonl").read_text().splitlines()]
        want = {}
        for line in (source / "expected.txt").read_text().splitlines():
            pool, kind, *numbers = line.split()
            want.setdefault((pool, kind), []).append([float(x) for x in numbers])
        return source, [r["text"] for r in rows], [r["pair"] for r in rows], want

    def test_states_are_those_of_transformers(self):
        source, texts, pairs, want = self.texts()
        tokenizer = czero.Tokenizer(source)
        engine = self.engine(model=source, seq_len=64, config=config(train_micro_batch_size_per_gpu=8))
        for kind, more in (("text", None), ("pair", pairs)):
            batch = tokenizer(texts, more, max_length=64)
            states = engine.hidden(**batch)
            self.assertEqual(states.shape, (*batch["input_ids"].shape, 16))
            for pool in ("cls", "mean", "last"):
                got = engine.hidden(**batch, pool=pool)
                self.assertEqual((got.dtype, got.shape), (numpy.float32, (6, 16)))
                numpy.testing.assert_allclose(got, want[pool, kind], atol=1e-5)
                unit = engine.hidden(**batch, pool=pool, normalize=True)
                numpy.testing.assert_allclose(numpy.linalg.norm(unit, axis=1), 1, rtol=1e-6)
            self.assertTrue(numpy.array_equal(states[:, 0], engine.hidden(**batch, pool="cls")))
        alone = engine.hidden(tokenizer(texts[0])["input_ids"], pool="mean")  # without a mask
        numpy.testing.assert_allclose(alone[0], want["mean", "text"][0], atol=1e-5)
        self.assertEqual(engine.micro_steps, 0)
        left = tokenizer([texts[0]])
        ids = numpy.concatenate([[[0]], left["input_ids"]], axis=1)
        mask = numpy.concatenate([[[0]], left["attention_mask"]], axis=1)
        places = numpy.maximum(numpy.arange(ids.shape[1]) - 1, 0)[None]
        for pool in ("cls", "mean", "last"):  # padding in front
            numpy.testing.assert_allclose(engine.hidden(ids, mask, position_ids=places, pool=pool)[0],
                                          want[pool, "text"][0], atol=1e-5)
        ids = numpy.concatenate([left["input_ids"]] * 2)
        mask = numpy.stack([left["attention_mask"][0], numpy.zeros_like(ids[0])])
        for pool in ("cls", "mean", "last"):  # a row without tokens
            for unit in (False, True):
                got = engine.hidden(ids, mask, pool=pool, normalize=unit)
                self.assertTrue(got[0].any() and not got[1].any(), pool)
        with self.assertRaisesRegex(ValueError, 'pool "max"'):
            engine.hidden(ids, pool="max")

    def test_tokenizers(self):
        source, texts, pairs, _ = self.texts()
        tokenizer = czero.Tokenizer(source)
        batch = tokenizer(texts, pairs)
        self.assertEqual(set(batch), {"input_ids", "attention_mask", "token_type_ids"})
        n = batch["attention_mask"].sum(1)
        self.assertEqual(batch["input_ids"].shape, (6, n.max()))
        self.assertEqual(batch["token_type_ids"].max(), 1)
        self.assertTrue((batch["input_ids"][:, 0] == 2).all())
        self.assertTrue((batch["input_ids"][numpy.arange(6), n - 1] == 3).all())
        self.assertTrue((batch["input_ids"][batch["attention_mask"] == 0] == 0).all())
        self.assertEqual(tokenizer(texts, max_length=3)["input_ids"].shape, (6, 3))
        self.assertEqual(tokenizer("no")["input_ids"].shape, (1, 3))
        self.assertEqual(tokenizer.decode(tokenizer("no")["input_ids"][0][1:-1]), "no")
        plain = czero.Tokenizer("bytes")
        self.assertEqual(plain.decode(plain("aä\0b")["input_ids"][0]), "aä\0b")
        self.assertEqual(plain("")["attention_mask"].tolist(), [[0]])
        self.assertGreater(len(plain), 255)
        for bad in (lambda: tokenizer(texts, pairs[:2]), lambda: tokenizer([]),
                    lambda: tokenizer(texts, max_length=0), lambda: tokenizer("a", max_length=1)):
            with self.assertRaises(ValueError):
                bad()
        with self.assertRaises(czero.NotFoundError):
            czero.Tokenizer(self.folder / "nothing")
        with self.assertRaisesRegex(TypeError, "text 0: a string is needed, not bytes"):
            tokenizer([b"a"])
        with self.assertRaisesRegex(TypeError, "pair 0: a string is needed, not int"):
            tokenizer(["a"], [5])
        with self.assertRaisesRegex(ValueError, "surrogates"):
            tokenizer("a\ud800")
        raw = _library.TokenizerInput(text=b"a\xff", nbytes=2)
        with self.assertRaisesRegex(czero.InvalidError, "the text: byte 0xff at offset 1 is not UTF-8"):
            tokenizer._call(_library.C.cz_tokenizer_encode_input, ctypes.byref(raw), 8,
                            (ctypes.c_int32 * 8)(), None, ctypes.byref(ctypes.c_int64()), None)
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "Tokenizer cannot be copied"):
                way(tokenizer)
        with self.assertRaisesRegex(TypeError, "opens tokenizers"):
            czero.Tokenizer.__new__(czero.Tokenizer)("a")

    def test_an_adapter_beside_a_model_is_said(self):
        engine = self.engine(lora={"rank": 2})
        engine.export_hf(self.folder / "both")
        self.engine().export_hf(self.folder / "model")
        for file in ("config.json", "model.safetensors"):
            (self.folder / "model" / file).rename(self.folder / "both" / file)
        with self.assertLogs("czero", "WARNING") as logged:
            self.engine(model=self.folder / "both")
        self.assertRegex(logged.output[0], "adapter_model.safetensors .*the model is taken alone")
        with self.assertLogs("czero", "INFO") as logged:
            self.engine(model=self.folder / "both", adapter=self.folder / "both")
            _library.log.info("at least one line")
        self.assertNotRegex(" ".join(logged.output), "taken alone")

    def test_handlers_have_a_stack_of_their_own(self):
        stack = _library._SignalStack()
        self.assertEqual(ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)), 0)
        self.assertFalse(stack.flags & _library._SS_DISABLE)
        self.assertGreaterEqual(stack.nbytes, 1 << 14)
        # Python's own handlers run there: Ctrl-C in the middle of steps, whose losses stay as they are
        script = """if True:
            import os, signal, threading, time, czero, numpy
            engine, _, _, _ = czero.initialize(model="gpt2-tiny", seq_len=16, config={
                "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
            ids = numpy.arange(64).reshape(4, 16)
            n, n_steps = 0, 0
            def wants_more():
                return n <= 10 or n_steps < 20
            def interrupt():
                while wants_more():
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.002)
            def count(*_):
                global n
                n += 1
            signal.signal(signal.SIGINT, count)
            thread = threading.Thread(target=interrupt)
            thread.start()
            while wants_more():
                engine.backward(engine(ids, ids))
                engine.step()
                n_steps += 1
            thread.join()
            print("interrupted")
            """
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, "interrupted\n"), done.stderr)

    def test_threads_share_a_tokenizer(self):
        tokenizer = czero.Tokenizer("bytes")
        together, failed = threading.Barrier(4), []

        def encode():
            together.wait()
            try:
                for _ in range(40):
                    assert tokenizer("a" * 20000, max_length=20000)["input_ids"].sum() == 97 * 20000
                    assert tokenizer.decode([98] * 10) == "b" * 10
            except BaseException as error:  # pylint: disable=broad-except
                failed.append(error)

        threads = [threading.Thread(target=encode) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_what_other_engines_have_is_named(self):
        engine = self.engine()
        for name, instead in (("set_train_batch_size", "save_checkpoint"),
                              ("set_gradient_accumulation_boundary", "managed_gradient_accumulation"),
                              ("module", "state_dict"), ("optimizer", "inside the engine"), ("cuda", "device="),
                              ("fp16_enabled", "config"), ("anything", "help")):
            self.assertFalse(hasattr(engine, name))
            with self.assertRaisesRegex(AttributeError, f"has no {name}: .*{re.escape(instead)}"):
                getattr(engine, name)
        names = " ".join(czero.engine._ELSEWHERE.values()).split()
        self.assertEqual(len(names), len(set(names)))
        self.assertFalse([name for name in names if hasattr(czero.Engine, name)])
        with self.assertRaises(AttributeError):
            czero.Engine.__new__(czero.Engine).module  # pylint: disable=expression-not-assigned

    def test_a_load_forgets_a_step_that_has_begun(self):
        engine = self.engine()
        train(engine, 1)
        engine.save_checkpoint(self.folder)
        want = engine.state_dict()
        engine(batch(5), batch(5))
        engine.load_checkpoint(self.folder)
        self.assertEqual((engine.micro_steps, engine.global_steps), (2, 1))
        self.assert_same(want, engine.state_dict())
        train(engine, 1, first=2)


class Checkpoints(Folder):
    def test_recorded_checkpoints_are_what_deepspeeds_script_made(self):
        n = 0
        for expected in sorted(ARGS.fixtures.glob("runs/*/expected.safetensors"))[::3]:
            with self.subTest(run=expected.parent.name):
                want = read_safetensors(expected)
                got = czero.load_state_dict_from_zero_checkpoint(expected.parent / "ckpt")
                self.assertEqual(set(got), set(want))
                for name in want:
                    numpy.testing.assert_array_equal(got[name], want[name].astype(got[name].dtype))
                n += 1
        self.assertGreater(n, 3)

    def test_rounded_weights(self):
        source = ARGS.fixtures / "runs/s3-bf16-adamw/ckpt"
        whole = czero.load_state_dict_from_zero_checkpoint(source)
        half = czero.load_state_dict_from_zero_checkpoint(source, dtype="fp16")
        bits = czero.load_state_dict_from_zero_checkpoint(source, dtype="bf16")
        for name, weight in whole.items():
            self.assertEqual((half[name].dtype, bits[name].dtype), (numpy.float16, numpy.uint16))
            numpy.testing.assert_array_equal(half[name], weight.astype(numpy.float16))
            wide = (bits[name].astype(numpy.uint32) << 16).view(numpy.float32)
            numpy.testing.assert_allclose(wide, weight, rtol=2.0**-8, atol=0)  # 8 bits of mantissa
        with self.assertRaises(ValueError):
            czero.load_state_dict_from_zero_checkpoint(source, dtype="int8")

    def test_consolidated_files_hold_the_same(self):
        source = ARGS.fixtures / "runs/s3-bf16-adamw/ckpt"
        written = czero.zero_to_fp32(source, self.folder / "out", safe_serialization=True, verify=True)
        arrays = read_safetensors(self.folder / "out/model.safetensors")
        self.assertEqual((written.n_files, written.n_tensors), (1, len(arrays)))
        self.assert_same(arrays, czero.load_state_dict_from_zero_checkpoint(source))
        czero.zero_to_fp32(source, self.folder / "shards", max_shard_size="100KB")
        self.assertTrue((self.folder / "shards/pytorch_model.bin.index.json").exists())
        with self.assertRaises(czero.InvalidError):
            czero.zero_to_fp32(source, self.folder / "x", max_shard_size="many")
        with self.assertRaises(czero.NotFoundError):
            czero.zero_to_fp32(self.folder / "nothing", self.folder / "x")


class Plans(unittest.TestCase):
    def test_plans(self):
        small = czero.plan("gpt2-tiny", config(), seq_len=16)
        large = czero.plan("gpt2-70b", config(), seq_len=1024, world_size=2)
        self.assertTrue(small.fits)
        self.assertFalse(large.fits)
        self.assertGreater(large.host_nbytes, 70e9 * 4)
        self.assertEqual((small.sent_nbytes, small.nvme_nbytes, small.step_s), (0, 0, None))
        self.assertGreater(large.sent_nbytes, 0)
        self.assertIn("gradients", str(small))
        self.assertIsInstance(small.details, dict)
        with self.assertRaises(czero.NotFoundError):
            czero.plan("gpt2-tiny", config(), profile="/nonexistent")


class Ranks(Folder):
    SCRIPT = textwrap.dedent("""
        import sys, numpy, czero
        engine, _, _, _ = czero.initialize(model="gpt2-tiny", seq_len=16, config={
            "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})
        assert engine.world_size == 2
        ids = numpy.random.default_rng(engine.global_rank).integers(0, 256, (2, 16))
        for step in range(3):
            if step == 2 and "folder" in sys.argv:
                one_fails = "a\\0b" if engine.global_rank == 1 else "there"
                for call in (engine.save_checkpoint, engine.load_checkpoint,
                             engine.save_16bit_model, engine.export_hf):
                    try:
                        call(f"{sys.argv[1]}-{one_fails}")
                    except (czero.Error, ValueError) as error:
                        sys.stdout.write(f"{engine.global_rank} {call.__name__} {error}\\n")
            if step == 2 and engine.global_rank == 1 and "fail" in sys.argv:
                raise RuntimeError("this rank fails")
            if "batch" in sys.argv:
                try:
                    engine.train_batch(iter([(ids, ids)][step == 1 and engine.global_rank == 1:]))
                except (czero.Error, StopIteration) as error:
                    sys.stdout.write(f"{engine.global_rank} {type(error).__name__} {error}\\n")
            else:
                engine.backward(engine(ids, ids))
                engine.step()
        if engine.global_rank == 0:
            sys.stdout.write(f"sent {engine.global_steps}\\n")
        engine.save_checkpoint(sys.argv[1])
    """)

    def launch(self, *arguments):
        script = self.folder / "train.py"
        script.write_text(self.SCRIPT)
        return subprocess.run([ARGS.czero, "launch", "-n", "2", "--", sys.executable, script,
                               self.folder / "run", *arguments], capture_output=True, text=True,
                              timeout=60)

    def test_ranks_train_and_save_together(self):
        done = self.launch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sent 3", done.stdout)
        self.assertEqual(len(czero.load_state_dict_from_zero_checkpoint(self.folder / "run")), 29)

    def test_a_rank_without_data_stops_the_step_of_all(self):
        done = self.launch("batch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 StopIteration", done.stdout)
        self.assertRegex(done.stdout, "0 Error .*rank 1.*no more data")
        self.assertIn("sent 2", done.stdout)

    def test_a_name_that_one_rank_refuses_is_refused_by_all(self):
        done = self.launch("folder")
        self.assertEqual(done.returncode, 0, done.stderr)
        for call in ("save_checkpoint", "load_checkpoint", "save_16bit_model", "export_hf"):
            self.assertRegex(done.stdout, f"1 {call} .*a NUL is inside")
            self.assertRegex(done.stdout, f"0 {call} .*rank 1.*a NUL is inside")
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith("run-")], [])
        self.assertIn("sent 3", done.stdout)

    def test_a_rank_that_fails_ends_the_others(self):
        done = self.launch("fail")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("this rank fails", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST])
