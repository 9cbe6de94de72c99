#!/usr/bin/env python3
"""Goal: the official ollama client, unmodified, gets from a cluster what Ollama's API promises, and
the text that OpenAI's API gives for the same conversation.

    ollama_test.py --build DIR      [unittest arguments]
"""
import argparse
import json
import os
import pathlib
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
import client_test  # noqa: E402  (restarts this script with the tests' Python)

try:
    import ollama
except ImportError:
    print("SKIPPED: the Python package ollama is not installed")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

QUESTION = [{"role": "user", "content": "Hi"}]
FLIP = {"type": "function", "function": {"name": "flip", "description": "Flips.", "parameters": {
    "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = client_test.Cluster("--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=512",
                                          "--local-prefill-tokens=0", "--served-model-name=hash")
        cls.client = ollama.Client(host=f"http://{cls.cluster.address}")
        cls.openai = cls.cluster.client()

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        assert cls.cluster.stop() == 0

    def chat(self, **options):
        given = {"temperature": 1.0, "seed": 7, "num_predict": 40, "ignore_eos": True, **options.pop("options", {})}
        return self.client.chat(**{"model": "hash", "messages": QUESTION, "options": given, **options})

    def of_openai(self, **options):
        body = {"model": "hash", "messages": QUESTION, "temperature": 1.0, "seed": 7, "max_tokens": 40,
                "extra_body": {"ignore_eos": True}, **options}
        return self.openai.chat.completions.create(**body)

    def test_chats_are_openais(self):
        whole = self.chat()
        expected = self.of_openai()
        self.assertEqual(whole.message.content, expected.choices[0].message.content)
        self.assertEqual((whole.prompt_eval_count, whole.eval_count),
                         (expected.usage.prompt_tokens, expected.usage.completion_tokens))
        self.assertEqual((whole.model, whole.message.role, whole.done, whole.done_reason),
                         ("hash", "assistant", True, "length"))
        self.assertGreater(whole.total_duration, 0)
        self.assertEqual(whole.total_duration // 1000,
                         (whole.load_duration + whole.prompt_eval_duration + whole.eval_duration) // 1000)
        lines = list(self.chat(stream=True))
        self.assertEqual("".join(line.message.content for line in lines), whole.message.content)
        self.assertEqual([line.done for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual((lines[-1].eval_count, lines[-1].done_reason), (40, "length"))

    def test_prompts_are_conversations_or_raw(self):
        options = {"temperature": 1.0, "seed": 7, "num_predict": 40, "ignore_eos": True}
        answer = self.client.generate(model="hash:latest", prompt="Hi", options=options)
        self.assertEqual(answer.response, self.of_openai().choices[0].message.content)
        self.assertEqual(answer.model, "hash:latest")
        raw = "".join(part.response for part in
                      self.client.generate(model="hash", prompt="Hi", raw=True, options=options, stream=True))
        expected = self.openai.completions.create(model="hash", prompt="Hi", temperature=1.0, seed=7, max_tokens=40,
                                                  extra_body={"ignore_eos": True})
        self.assertEqual(raw, expected.choices[0].text)

    def test_stop_strings_end_the_answer(self):
        text = self.chat().message.content
        stop = text[10:13]
        cut = self.chat(options={"stop": [stop]})
        self.assertEqual((cut.message.content, cut.done_reason), (text[:text.index(stop)], "stop"))

    def test_formats_constrain(self):
        answer = self.chat(format={"enum": [{"x": 1}]}, options={"ignore_eos": False, "num_predict": 60})
        self.assertEqual(json.loads(answer.message.content), {"x": 1})

    def test_calls_and_their_results_are_a_chats(self):
        call = {"name": "flip", "arguments": {"x": 1}}
        answer = self.chat(tools=[FLIP], messages=[
            *QUESTION, {"role": "assistant", "tool_calls": [{"function": call}]},
            {"role": "tool", "tool_name": "flip", "content": "1"}])
        expected = self.of_openai(tools=[FLIP], messages=[
            *QUESTION, {"role": "assistant", "tool_calls": [
                {"type": "function", "id": "1", "function": {"name": "flip", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "name": "flip", "tool_call_id": "1", "content": "1"}])
        self.assertEqual(answer.message.content, expected.choices[0].message.content)
        self.assertEqual(answer.prompt_eval_count, expected.usage.prompt_tokens)

    def test_what_is_served(self):
        listed = self.client.list().models
        self.assertEqual([model.model for model in listed], ["hash"])
        self.assertEqual(listed[0].details.family, "hash")
        self.assertEqual([model.model for model in self.client.ps().models], ["hash"])
        shown = self.client.show("hash:latest")
        self.assertEqual(shown.capabilities, ["completion"])  # its template shows no tools
        self.assertGreater(shown.modelinfo["hash.context_length"], 0)
        self.assertEqual(set(json.loads(self.cluster.get("/api/version"))), {"version", "tandem"})

    def test_nothing_to_say_is_a_load(self):
        self.assertEqual(self.client.generate(model="hash").done_reason, "load")
        self.assertEqual(self.client.chat(model="hash", messages=[], keep_alive=0).done_reason, "unload")

    def test_errors_are_ollamas(self):
        for call, status, words in (
                (lambda: self.chat(options={"top_k": 1.5}), 400, "options.top_k: 1.5"),
                (lambda: self.chat(options={"temperature": -1}), 400, "options.temperature: -1"),
                (lambda: self.chat(model="other"), 404, 'model: "other" is not served'),
                (lambda: self.client.show("other"), 404, 'model: "other" is not served'),
                (lambda: self.client.generate(model="hash", prompt="x" * 40000), 400, "prompt: 40"),
                (lambda: self.chat(messages=[{"role": "user", "content": "x" * 40000}]), 400, "messages: 40"),
                (lambda: self.client.pull("hash"), 404, "no such path: /api/pull")):
            with self.assertRaises(ollama.ResponseError) as caught:
                call()
            self.assertEqual(caught.exception.status_code, status)
            self.assertTrue(caught.exception.error.startswith(words), caught.exception.error)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.cluster.get("/api/chat")
        with caught.exception as reply:
            self.assertEqual(json.load(reply), {"error": "/api/chat: GET, expected POST"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    client_test.BUILD = known.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
