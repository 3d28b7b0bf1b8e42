#!/usr/bin/env python3
"""czero's template engine beside transformers' own (jinja2 in its sandbox): texts to the byte, and the
spans of {% generation %}.

    $(scripts/peers.sh) tests/interop/chat/jinja_check.py build/libczero_internal.so [--random N] [--seed S] [--verbose]

Every chat template in the installed trl and transformers, with the conversations of conversations.py
and N random ones each, with and without a generation prompt; then the snippets of snippets.py, which
try each filter, test, method and statement. Where Python raises, czero must refuse; what czero alone
refuses as unsupported is counted by its sentence. Ends with status 1 if anything differs."""

import argparse
import collections
import datetime as datetime_module
import importlib.util
import pathlib
import random
import re
import sys

import transformers.utils.chat_template_utils as peer

from conversations import CONVERSATIONS, random_conversation
from jinja_engine import Engine, Refused
from snippets import SNIPPETS, VALUES, random_snippet

NOW = 1764000000


class Frozen(datetime_module.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


peer.datetime = Frozen
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def templates():
    for package in ("trl", "transformers"):
        folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
        for path in sorted(folder.rglob("*.jinja")):
            yield f"{package}/{path.name}", path.read_text()
        if package == "transformers":
            found = {}
            for path in sorted(folder.rglob("*.py")):
                for i, text in enumerate(re.findall(r'"""((?:(?!""").)*?\{%.*?)"""', path.read_text(), re.S)):
                    if "messages" in text and "endfor" in text:
                        found.setdefault(text, f"transformers/{path.name}#{i}")
            for text, name in found.items():
                yield name, text


def theirs(compiled, variables):
    try:
        return peer._render_with_assistant_indices(compiled_template=compiled, **variables), None
    except Exception as e:
        return None, e


def ours(template, variables):
    try:
        return template.render(variables, NOW), None
    except Refused as e:
        return None, e


class Report:
    def __init__(self, verbose):
        self.n = self.same = self.raised = self.bad = 0
        self.unsupported = collections.Counter()
        self.verbose = verbose

    def compare(self, name, expected, error, got, refusal):
        self.n += 1
        if refusal is not None and refusal.unsupported:
            self.unsupported[re.sub(r"^[^:]*:\d+: ", "", str(refusal))] += 1
            return
        if error is not None and refusal is not None:
            self.raised += 1
            return
        if error is None and refusal is None and tuple(expected) == tuple(got):
            self.same += 1
            return
        if error is None and got is None and "can be cut" in str(refusal):
            self.same += 1  # Jinja makes a slice of a constant undefined when it folds constants
            return
        self.bad += 1
        if self.bad <= 20 or self.verbose:
            print(f"{name}: differs")
            print("   expected:", repr(error) if error is not None else repr(expected)[:1500])
            print("   got:     ", str(refusal) if refusal is not None else repr(got)[:1500])

    def end(self, what):
        print(f"{what}: {self.n} renderings, {self.same} equal, {self.raised} refused by both, "
              f"{sum(self.unsupported.values())} unsupported, {self.bad} differ")
        for sentence, n in self.unsupported.most_common(20):
            print(f"   {n} × {sentence}")


def plain(value):
    return peer._plain_template_data(value)


def check_templates(engine, args):
    report = Report(args.verbose)
    rng = random.Random(args.seed)
    names = 0
    for name, text in templates():
        try:
            compiled, broken = peer._compile_jinja_template(text), None
        except Exception as e:
            compiled, broken = None, e
        try:
            template, refusal = engine.parse(text, name), None
        except Refused as e:
            template, refusal = None, e
        if compiled is None or template is None:
            report.compare(f"{name} (parsing)", None if broken else ("", []), broken, ("", []), refusal)
            continue
        names += 1
        cases = list(CONVERSATIONS) + [random_conversation(rng) for _ in range(args.random)]
        for i, case in enumerate(cases):
            for prompt in (False, True):
                variables = dict(TOKENS, messages=[], tools=None, documents=None)
                variables.update(case)
                variables["add_generation_prompt"] = prompt
                expected, error = theirs(compiled, plain(variables))
                got, refusal = ours(template, variables)
                report.compare(f"{name}, case {i}, prompt {prompt}", expected, error, got, refusal)
    report.end(f"{names} templates")
    return report.bad


def check_snippets(engine, args):
    report = Report(args.verbose)
    rng = random.Random(args.seed)
    snippets = list(SNIPPETS) + [random_snippet(rng) for _ in range(100 * args.random)]
    for text in snippets:
        try:
            compiled = peer._compile_jinja_template(text)
            values = dict(VALUES, tools=None, documents=None, add_generation_prompt=False)
            expected, error = theirs(compiled, plain(values))
        except Exception as e:
            expected, error = None, e
        try:
            got, refusal = ours(engine.parse(text, "snippet"), VALUES)
        except Refused as e:
            got, refusal = None, e
        report.compare(repr(text), expected, error, got, refusal)
    report.end(f"{len(snippets)} snippets")
    return report.bad


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--random", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    engine = Engine(args.library)
    bad = check_templates(engine, args) + check_snippets(engine, args)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
