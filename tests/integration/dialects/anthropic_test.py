#!/usr/bin/env python3
"""Goal: the official anthropic client, unmodified, gets from a cluster what Anthropic's Messages API
promises, and the text that OpenAI's API gives for the same conversation.

    anthropic_test.py --build DIR      [unittest arguments]
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "openai"))
import client_test  # noqa: E402  (restarts this script with the tests' Python)

try:
    import anthropic
except ImportError:
    print("SKIPPED: the Python package anthropic is not installed")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

QUESTION = [{"role": "user", "content": "Hi"}]
FLIP = {"name": "flip", "description": "Flips.", "input_schema": {"enum": [{"x": 1}]}}


def client_of(cluster, **options):
    return anthropic.Anthropic(base_url=f"http://{cluster.address}", max_retries=0, **{"api_key": "none", **options})


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = client_test.Cluster("--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=512",
                                          "--local-prefill-tokens=0", "--served-model-name=hash")
        cls.client = client_of(cls.cluster)
        cls.openai = cls.cluster.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.openai.close()
        assert cls.cluster.stop() == 0

    BODY = {"model": "hash", "messages": QUESTION, "max_tokens": 40,
            "extra_body": {"temperature": 1.0, "seed": 7, "ignore_eos": True}}

    def create(self, **options):
        return self.client.messages.create(**{**self.BODY, **options})

    def of_openai(self, **options):
        body = {"model": "hash", "messages": QUESTION, "temperature": 1.0, "seed": 7, "max_tokens": 40,
                "extra_body": {"ignore_eos": True}, **options}
        return self.openai.chat.completions.create(**body)

    def test_models_have_the_form_of_the_api(self):
        listed = list(self.client.models.list())
        self.assertEqual([(model.type, model.id, model.lifecycle) for model in listed],
                         [("model", "hash", "active")])
        self.assertGreater(listed[0].max_input_tokens, 0)
        self.assertEqual(self.client.models.retrieve("hash"), listed[0])
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.models.retrieve("other")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        # Who does not name Anthropic's version gets OpenAI's form.
        self.assertEqual([model.object for model in self.openai.models.list()], ["model"])

    def test_messages_are_chats(self):
        message = self.create()
        expected = self.of_openai()
        self.assertEqual([block.text for block in message.content], [expected.choices[0].message.content])
        self.assertEqual((message.type, message.role, message.model, message.stop_reason, message.stop_sequence),
                         ("message", "assistant", "hash", "max_tokens", None))
        self.assertTrue(message.id.startswith("msg_"))
        self.assertEqual((message.usage.input_tokens + message.usage.cache_read_input_tokens,
                          message.usage.output_tokens), (expected.usage.prompt_tokens, 40))
        self.assertEqual(self.client.messages.count_tokens(model="hash", messages=QUESTION).input_tokens,
                         expected.usage.prompt_tokens)

    def test_streams_say_what_the_whole_message_says(self):
        whole = self.create()
        with self.client.messages.stream(**self.BODY) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        for message in (whole, final):
            message.id = ""
            message.usage.input_tokens += message.usage.cache_read_input_tokens
            message.usage.cache_read_input_tokens = 0
        # The client keeps the text as it was parsed, which a whole message does not have.
        self.assertEqual(final.model_dump(exclude={"content": {0: {"parsed_output"}}}), whole.model_dump())
        types = [event.type for event in self.create(stream=True)]
        self.assertEqual(types[:2] + types[-3:], ["message_start", "content_block_start", "content_block_stop",
                                                  "message_delta", "message_stop"])
        self.assertEqual(set(types[2:-3]), {"content_block_delta"})

    def test_stop_sequences_end_the_message(self):
        text = self.create().content[0].text
        stop = text[10:13]
        cut = self.create(stop_sequences=[stop])
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(cut.content[0].text, text[:text.index(stop)])

    def test_tools_are_used_and_answered(self):
        asked = {"tools": [FLIP], "tool_choice": {"type": "tool", "name": "flip"}, "extra_body": {"seed": 7},
                 "max_tokens": 60}
        message = self.create(**asked)
        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual([(block.type, block.name, block.input) for block in message.content],
                         [("tool_use", "flip", {"x": 1})])
        with self.client.messages.stream(**{**self.BODY, **asked}) as stream:
            final = stream.get_final_message()
        self.assertEqual([(block.name, block.input) for block in final.content], [("flip", {"x": 1})])
        several = self.create(**{**asked, "max_tokens": 400, "tool_choice": {
            "type": "any", "disable_parallel_tool_use": True}})
        self.assertEqual([block.name for block in several.content], ["flip"])
        call = message.content[0]
        answer = self.create(tools=[FLIP], messages=[
            *QUESTION, {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": [
                {"type": "text", "text": "1"}]}]}])
        tool = {"type": "function", "function": {"name": "flip", "description": "Flips.",
                                                 "parameters": FLIP["input_schema"]}}
        expected = self.of_openai(tools=[tool], messages=[
            *QUESTION, {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "id": call.id, "function": {"name": "flip", "arguments": '{"x":1}'}}]},
            {"role": "tool", "name": "flip", "tool_call_id": call.id, "content": "1"}])
        self.assertEqual("".join(block.text for block in answer.content), expected.choices[0].message.content)

    def test_the_last_assistants_message_is_continued(self):
        said = [*QUESTION, {"role": "assistant", "content": "Hello, "}]
        expected = self.of_openai(messages=said, extra_body={
            "ignore_eos": True, "continue_final_message": True, "add_generation_prompt": False})
        self.assertEqual(self.create(messages=said).content[0].text, expected.choices[0].message.content)

    def test_errors_are_the_clients_own(self):
        for kind, words, options in (
                (anthropic.BadRequestError, "temperature: -1", {"extra_body": {"temperature": -1}}),
                (anthropic.BadRequestError, "stop_sequences", {"stop_sequences": [""]}),
                (anthropic.BadRequestError, "thinking.type", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
                (anthropic.BadRequestError, "prompt is too long: 40", {"messages": [{"role": "user", "content": "x" * 40000}]}),
                (anthropic.NotFoundError, 'model: "other" is not served', {"model": "other"})):
            with self.assertRaises(kind) as caught:
                self.create(**options)
            body = caught.exception.body
            self.assertEqual(body["type"], "error")
            self.assertEqual(body["error"]["type"],
                             "not_found_error" if kind is anthropic.NotFoundError else "invalid_request_error")
            self.assertTrue(body["error"]["message"].startswith(words), body)
            self.assertEqual(body["request_id"], caught.exception.request_id)


class Keys(unittest.TestCase):
    def test_a_key_comes_in_either_header(self):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/keys"
            added = subprocess.run([f"{client_test.BUILD}/bin/tandem", "keys", "add", "alice", f"--file={file}"],
                                   check=True, capture_output=True, text=True)
            key = [word for word in added.stdout.split() if len(word) > 30][0]
            cluster = client_test.Cluster("--engine=hash", "--prefill=0", "--decode=1", "--kv-blocks=64",
                                          f"--api-keys={file}")
            try:
                body = {"model": "hash", "max_tokens": 4, "messages": QUESTION, "extra_body": {"seed": 7}}
                model = "hash-engine"
                for options in ({"api_key": key}, {"api_key": None, "auth_token": key}):
                    with client_of(cluster, **options) as client:
                        model = client.models.list().data[0].id
                        self.assertEqual(client.messages.create(**{**body, "model": model}).usage.output_tokens, 4)
                with client_of(cluster, api_key="wrong") as client:
                    with self.assertRaises(anthropic.AuthenticationError) as caught:
                        client.messages.create(**{**body, "model": model})
                    self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
            finally:
                self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    client_test.BUILD = known.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
