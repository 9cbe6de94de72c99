#!/usr/bin/env python3
"""Goal: POST /v1/responses is OpenAI's Responses API to its official client: every object and event is
the schema's, a stream says what the whole answer says, and the text is a chat's for the same conversation.

    responses_test.py --build DIR      [unittest arguments]

Runs against the hash engine, and against the real model where it has been fetched.
"""
import argparse
import json
import os
import pathlib
import unittest
import urllib.request

import client_test
import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent

# What an object has beside the schema's members.
BESIDE_THE_SCHEMA = {"store"}
ROOT = pathlib.Path(__file__).resolve().parents[3]
QUESTION = [{"role": "user", "content": "Hi"}]
FLIP = {"type": "function", "name": "flip", "description": "Flips.", "strict": True,
        "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"],
                       "additionalProperties": False}}
CALL = '<tool_call>\\{"name": "flip", "arguments": \\{"x": [12]\\}\\}</tool_call>'


def extras(model, path="response"):
    """Paths of all members in `model` that its schema does not have."""
    if isinstance(model, pydantic.BaseModel):
        found = [f"{path}.{name}" for name in model.model_extra or {}]
        return found + [one for name in type(model).model_fields for one in extras(getattr(model, name), f"{path}.{name}")]
    if isinstance(model, list):
        return [one for i, item in enumerate(model) for one in extras(item, f"{path}[{i}]")]
    return []


class Strict:
    """Checks of raw answers against the pinned package's models, nothing converted and nothing extra."""

    events = pydantic.TypeAdapter(ResponseStreamEvent)

    def check(self, model):
        left = [path for path in extras(model) if path.rsplit(".", 1)[1] not in BESIDE_THE_SCHEMA]
        self.assertEqual(left, [])
        return model

    def raw(self, **body):
        return urllib.request.urlopen(urllib.request.Request(
            f"http://{self.cluster.address}/v1/responses", json.dumps({"model": "hash", **body}).encode(),
            {"content-type": "application/json"}))

    def whole(self, **body):
        with self.raw(**body) as reply:
            return self.check(Response.model_validate(json.load(reply), strict=True))

    def stream(self, **body):
        events = []
        with self.raw(stream=True, **body) as reply:
            self.assertTrue(reply.headers["content-type"].startswith("text/event-stream"))
            for block in reply.read().decode().strip("\n").split("\n\n"):
                name, data = block.split("\n")
                data = json.loads(data.removeprefix("data: "))
                self.assertEqual(name, f"event: {data['type']}")
                events.append(self.check(self.events.validate_python(data, strict=True)))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        return events


def without_ids(response):
    """What must be equal in two answers to one request."""
    data = json.loads(response.model_dump_json())
    for name in ("id", "created_at", "completed_at"):
        del data[name]
    for item in data["output"]:
        del item["id"]
        item.pop("call_id", None)
    # The second of two equal prompts finds the first's in the cache.
    del data["usage"]["input_tokens_details"]
    return data


class HashEngine(Strict, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = client_test.Cluster("--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=1200",
                                          "--local-prefill-tokens=0", "--served-model-name=hash")
        cls.client = cls.cluster.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.cluster.stop() == 0

    def create(self, **options):
        extra = {"seed": 3, "ignore_eos": True, **options.pop("extra_body", {})}
        options = {"model": "hash", "input": "Hi", "max_output_tokens": 8, **options}
        return self.client.responses.create(extra_body=extra, **options)

    def chat(self, messages, **options):
        extra = {"seed": 3, "ignore_eos": True, **options.pop("extra_body", {})}
        options.setdefault("max_completion_tokens", 8)
        return self.client.chat.completions.create(model="hash", messages=messages, extra_body=extra, **options)

    def assert_same_as_chat(self, answer, chat):
        self.assertEqual(answer.output_text, chat.choices[0].message.content)
        self.assertEqual((answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens),
                         (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens))

    def test_an_answer_is_the_schemas_and_repeats_what_was_asked(self):
        settings = {"instructions": "Be brief.", "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9,
                    "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
                    "max_tool_calls": 3, "parallel_tool_calls": False, "top_logprobs": 1, "truncation": "auto",
                    "reasoning": {"effort": "low", "summary": None}, "tools": [FLIP], "tool_choice": "auto",
                    "text": {"format": {"type": "text"}, "verbosity": "low"}}
        answer = self.whole(input="Hi", seed=1, ignore_eos=True, service_tier="auto", store=True, **settings)
        self.assertRegex(answer.id, "^resp_[0-9a-f]{32}$")
        said = json.loads(answer.model_dump_json(exclude_unset=True))
        for name, value in settings.items():
            self.assertEqual(said[name], value, name)
        self.assertEqual(said["tools"][0], FLIP)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual((answer.error, answer.completed_at, answer.service_tier), (None, None, "default"))
        self.assertEqual(answer.output[0].status, "incomplete")
        self.assertEqual(answer.usage.output_tokens, 5)

    def test_a_complete_answer(self):
        answer = self.whole(input="Hi", guided_choice=["left"])
        self.assertEqual((answer.status, answer.incomplete_details, answer.output_text), ("completed", None, "left"))
        self.assertEqual(answer.output[0].status, "completed")
        self.assertGreaterEqual(answer.completed_at, answer.created_at)

    def test_texts_are_a_chats(self):
        parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
        said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
        for given, messages in (
                ({"input": "Hi"}, QUESTION),
                ({"input": "Hi", "instructions": "Be."}, [{"role": "system", "content": "Be."}, *QUESTION]),
                ({"input": QUESTION}, QUESTION),
                ({"input": [{"role": "developer", "content": "Be."}, {"role": "user", "content": parts}]},
                 [{"role": "system", "content": "Be."}, {"role": "user", "content": "one\ntwo"}]),
                ({"input": [*QUESTION, said, {"role": "user", "content": "And?", "type": "message"}]},
                 [*QUESTION, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "And?"}])):
            with self.subTest(given=given):
                chat = self.chat(messages)
                self.assert_same_as_chat(self.create(**given), chat)
                streamed = "".join(event.delta for event in self.create(stream=True, **given)
                                   if event.type == "response.output_text.delta")
                self.assertEqual(streamed, chat.choices[0].message.content)

    def test_events_of_a_stream(self):
        body = {"input": "Hi", "seed": 3, "ignore_eos": True, "max_output_tokens": 4}
        whole = self.whole(**body)
        events = self.stream(stream_options={"include_obfuscation": False}, **body)
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        self.assertEqual([event.type for event in events], [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            *["response.output_text.delta"] * len(deltas), "response.output_text.done",
            "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual("".join(event.delta for event in deltas), whole.output_text)
        created, last = events[0].response, events[-1].response
        self.assertEqual((created.status, created.output, created.usage), ("in_progress", [], None))
        self.assertEqual(without_ids(last), without_ids(whole))
        added, text, part, item = events[2].item, events[-4], events[-3].part, events[-2].item
        self.assertEqual((added.id, added.status, added.content), (item.id, "in_progress", []))
        self.assertEqual({event.item_id for event in deltas}, {item.id})
        self.assertEqual((text.text, part.text), (whole.output_text, whole.output_text))
        self.assertEqual(item, last.output[0])
        self.assertEqual(self.stream(input="Hi", guided_choice=["left"])[-1].type, "response.completed")

    def test_an_answer_of_no_text_is_an_empty_message(self):
        for body in ({"stop": ["a", "b"], "allowed_token_ids": [97, 98], "seed": 1}, {"guided_regex": " {3}", "tools": [FLIP]}):
            text = "" if "stop" in body else "   "
            answer = self.whole(input="Hi", **body)
            self.assertEqual([(item.type, item.content[0].text) for item in answer.output], [("message", text)])
            events = self.stream(input="Hi", **body)
            self.assertEqual(without_ids(events[-1].response), without_ids(answer))
            self.assertIn("response.output_text.done", [event.type for event in events])

    def test_the_clients_stream(self):
        with self.client.responses.stream(model="hash", input="Hi", extra_body={"guided_choice": ["left"]}) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        self.assertEqual((snapshots[-1], final.output_text), ("left", "left"))

    def test_log_probabilities(self):
        chat = self.chat(QUESTION, logprobs=True, top_logprobs=2).choices[0].logprobs.content
        include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        body = {"input": "Hi", "seed": 3, "ignore_eos": True, "max_output_tokens": 8, **include}
        got = self.whole(**body).output[0].content[0].logprobs
        self.assertEqual([json.loads(one.model_dump_json()) for one in got],
                         [json.loads(one.model_dump_json()) for one in chat])
        events = self.stream(**body)
        streamed = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
        self.assertEqual([(one.token, one.logprob, len(one.top_logprobs)) for one in streamed],
                         [(one.token, one.logprob, 2) for one in chat])
        self.assertEqual(events[-1].response.output[0].content[0].logprobs, got)
        self.assertEqual(self.create(top_logprobs=2).output[0].content[0].logprobs, [])

    def test_text_in_a_given_form(self):
        class Switch(pydantic.BaseModel):
            # Bounded, whatever the engine likes to write.
            mode: str = pydantic.Field(pattern="^(on|off)$")

        schema = {"type": "json_schema", "name": "Switch", "strict": True, "schema": Switch.model_json_schema()}
        for seed in range(20):
            answer = self.whole(input="?", max_output_tokens=400, seed=seed, text={"format": schema})
            if answer.status == "completed":
                break
        self.assertIn(json.loads(answer.output_text)["mode"], ("on", "off"))
        self.assertEqual(answer.text.format.schema_, Switch.model_json_schema())
        parsed = self.client.responses.parse(model="hash", input="?", max_output_tokens=400, text_format=Switch,
                                             extra_body={"seed": seed})
        self.assertIn(parsed.output_parsed.mode, ("on", "off"))
        for seed in range(20):
            answer = self.whole(input="?", max_output_tokens=400, seed=seed, text={"format": {"type": "json_object"}})
            if answer.status == "completed":
                break
        self.assertIsInstance(json.loads(answer.output_text), dict)

    def test_calls_of_functions(self):
        body = {"input": "Hi", "tools": [FLIP], "max_output_tokens": 200, "seed": 3,
                "guided_regex": f"Now\\. {CALL}\n{CALL}"}
        answer = self.whole(**body)
        self.assertEqual([item.type for item in answer.output], ["message", "function_call", "function_call"])
        self.assertEqual(answer.output_text, "Now. ")
        first, second = answer.output[1:]
        self.assertEqual((first.name, first.status), ("flip", "completed"))
        self.assertIn(json.loads(first.arguments)["x"], (1, 2))
        self.assertEqual(len({first.id, first.call_id, second.id, second.call_id}), 4)
        events = self.stream(**body)
        self.assertEqual(without_ids(events[-1].response), without_ids(answer))
        calls = [event for event in events if "function_call" in event.type or
                 event.type.startswith("response.output_item") and event.item.type == "function_call"]
        self.assertEqual([event.type.removeprefix("response.") for event in calls], [
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"] * 2)
        self.assertEqual([event.output_index for event in calls], [1] * 4 + [2] * 4)
        self.assertEqual((calls[0].item.arguments, calls[1].delta, calls[2].arguments),
                         ("", first.arguments, first.arguments))
        one = self.whole(parallel_tool_calls=False, **body)
        self.assertEqual([item.type for item in one.output], ["message", "function_call"])

    def test_calls_that_must_be_made(self):
        named = self.whole(input="?", tools=[FLIP], tool_choice={"type": "function", "name": "flip"}, seed=1,
                           max_output_tokens=300)
        self.assertEqual([(item.type, item.name) for item in named.output], [("function_call", "flip")])
        self.assertEqual(named.tool_choice.name, "flip")
        self.assertEqual(without_ids(self.stream(input="?", tools=[FLIP], seed=1, max_output_tokens=300, tool_choice={
            "type": "function", "name": "flip"})[-1].response), without_ids(named))
        cut = self.whole(input="?", tools=[FLIP], tool_choice={"type": "function", "name": "flip"}, max_output_tokens=2)
        self.assertEqual((cut.status, cut.output[0].status), ("incomplete", "incomplete"))
        for seed in range(20):
            required = self.whole(input="?", tools=[FLIP], tool_choice="required", max_output_tokens=300, seed=seed)
            if required.status == "completed":
                break
        self.assertEqual({item.type for item in required.output}, {"function_call"})

    def test_a_second_turn_with_what_a_function_said(self):
        chat_tools = [{"type": "function", "function": {name: FLIP[name]
                                                        for name in ("name", "description", "parameters")}}]
        guided = {"guided_regex": f"Now\\.{CALL}"}
        first = self.create(tools=[FLIP], max_output_tokens=200, extra_body=guided)
        chat_first = self.chat(QUESTION, tools=chat_tools, max_completion_tokens=200, extra_body=guided)
        self.assert_same_as_chat(first, chat_first)
        call, chat_call = first.output[1], chat_first.choices[0].message.tool_calls[0]
        self.assertEqual(call.arguments, chat_call.function.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "heads"}
        for output in ("heads", [{"type": "input_text", "text": "heads"}]):
            second = self.create(tools=[FLIP], input=[*QUESTION, *first.output, {**result, "output": output}])
            chat_second = self.chat([*QUESTION, {
                "role": "assistant", "content": "Now.", "tool_calls": [{
                    "id": call.call_id, "type": "function",
                    "function": {"name": "flip", "arguments": call.arguments}}]},
                {"role": "tool", "tool_call_id": call.call_id, "content": "heads"}], tools=chat_tools)
            self.assert_same_as_chat(second, chat_second)

    def test_a_message_that_was_cut_off_is_continued(self):
        cut = self.create(max_output_tokens=5)
        answer = self.create(input=[*QUESTION, *cut.output])
        chat = self.chat([*QUESTION, {"role": "assistant", "content": cut.output_text}],
                         extra_body={"continue_final_message": True, "add_generation_prompt": False})
        self.assert_same_as_chat(answer, chat)

    def test_long_inputs_may_be_cut(self):
        long = "p" * 40000
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(input=long)
        self.assertEqual((caught.exception.code, caught.exception.param), ("context_length_exceeded", "input"))
        answer = self.create(input=long, truncation="auto")
        self.assertGreater(answer.usage.input_tokens, 8000)

    def test_what_is_refused_is_named(self):
        for param, code, body in (
                ("input", None, {"input": []}),
                ("input[0].type", "unsupported_parameter", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
                ("input[0].type", "unsupported_parameter", {"input": [{"id": "msg_1"}]}),
                ("input[1].type", "unsupported_parameter", {"input": [*QUESTION, {"type": "reasoning", "id": "r"}]}),
                ("input[0].content[0].type", "unsupported_parameter", {"input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}]}),
                ("input[0].content[0].type", "unsupported_parameter", {"input": [
                    {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}),
                ("input[0].call_id", None, {"input": [
                    {"type": "function_call_output", "call_id": "c", "output": "o"}]}),
                ("input[0].arguments", None, {"input": [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": 5}]}),
                ("tools[0].type", "unsupported_parameter", {"tools": [{"type": "web_search"}]}),
                ("tool_choice.type", "unsupported_parameter", {"tool_choice": {"type": "web_search"}}),
                ("tool_choice.name", None, {"tools": [FLIP], "tool_choice": {"type": "function", "name": "g"}}),
                ("tool_choice", None, {"tool_choice": "required"}),
                ("background", "unsupported_parameter", {"background": True}),
                ("conversation", "unsupported_parameter", {"conversation": "conv_1"}),
                ("prompt", "unsupported_parameter", {"prompt": {"id": "p"}}),
                ("max_tokens", "unsupported_parameter", {"max_tokens": 5}),
                ("response_format", "unsupported_parameter", {"response_format": {"type": "text"}}),
                ("max_output_tokens", None, {"max_output_tokens": 0}),
                ("max_output_tokens", "context_length_exceeded", {"max_output_tokens": 1000000}),
                ("temperature", None, {"temperature": -1}),
                ("text.format.schema", None, {"text": {"format": {"type": "json_schema", "name": "n"}}}),
                ("text.format.type", None, {"text": {"format": {"type": "xml"}}}),
                ("metadata", None, {"metadata": {str(i): "" for i in range(17)}}),
                ("metadata.a", None, {"metadata": {"a": "x" * 513}}),
                ("include", None, {"include": {}}),
                ("top_logprobs", None, {"top_logprobs": 21})):
            for stream in (False, True):
                with self.subTest(param=param, stream=stream), self.assertRaises(openai.BadRequestError) as caught:
                    extra = {name: body[name] for name in body if name in ("max_tokens", "response_format")}
                    self.create(stream=stream, extra_body=extra,
                                **{name: value for name, value in body.items() if name not in extra})
                self.assertEqual((caught.exception.param, caught.exception.code), (param, code))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.create(model="other")
        self.assertEqual(caught.exception.code, "model_not_found")
        self.create(extra_body={"nobody": "knows"})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(extra_body={"nobody": "knows", "strict": True})
        self.assertEqual(caught.exception.param, "nobody")

    def test_a_later_turn_names_the_one_before(self):
        guided = {"guided_regex": f"Now\\.{CALL}"}
        first = self.create(tools=[FLIP], max_output_tokens=200, instructions="Be.", extra_body=guided)
        self.assertEqual(first.model_extra["store"], True)
        output = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "heads"}
        second = self.create(tools=[FLIP], previous_response_id=first.id, input=[output], instructions="Be otherwise.")
        self.assertEqual(second.previous_response_id, first.id)
        # Instructions are of one turn alone.
        whole = self.create(tools=[FLIP], input=[*QUESTION, *first.output, output], instructions="Be otherwise.")
        third = self.create(previous_response_id=second.id, input="More", stream=True)
        text = "".join(event.delta for event in third if event.type == "response.output_text.delta")
        later = self.create(input=[*QUESTION, *first.output, output, *second.output, {"role": "user", "content": "More"}])
        self.assertEqual((second.output_text, second.usage.input_tokens), (whole.output_text, whole.usage.input_tokens))
        self.assertEqual(text, later.output_text)

    def test_responses_are_kept_until_they_are_deleted(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                answer = self.create(stream=stream)
                if stream:
                    answer = list(answer)[-1].response
                kept = self.client.responses.retrieve(answer.id)
                self.assertEqual(json.loads(kept.model_dump_json()), json.loads(answer.model_dump_json()))
                with self.assertRaises(openai.BadRequestError):
                    self.client.responses.cancel(answer.id)
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.client.responses.retrieve(answer.id, stream=True)
                self.assertEqual(caught.exception.param, "stream")
                self.client.responses.delete(answer.id)
                self.assert_unknown(answer.id)
        self.assert_unknown(self.create(store=False).id)
        self.create()
        kept = [line for line in self.cluster.get("/metrics").splitlines() if line.startswith("tandem_responses_kept ")]
        self.assertGreater(int(kept[0].split()[1]), 0)

    def assert_unknown(self, id):
        for ask in (lambda: self.client.responses.retrieve(id), lambda: self.client.responses.delete(id),
                    lambda: self.client.responses.cancel(id)):
            with self.assertRaises(openai.NotFoundError):
                ask()
        for stream in (False, True):
            with self.assertRaises(openai.NotFoundError) as caught:
                self.create(previous_response_id=id, stream=stream)
            self.assertEqual((caught.exception.param, caught.exception.code),
                             ("previous_response_id", "previous_response_not_found"))

    def test_a_prompt_is_counted(self):
        for given in ({"input": "Hi"}, {"input": QUESTION, "instructions": "Be.", "tools": [FLIP]}):
            counted = self.client.responses.input_tokens.count(model="hash", **given)
            self.assertEqual((counted.object, counted.input_tokens),
                             ("response.input_tokens", self.create(**given).usage.input_tokens))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.input_tokens.count(model="hash", input=[])
        self.assertEqual(caught.exception.param, "input")

    def test_what_probes_and_other_clients_ask_for(self):
        self.assertGreaterEqual(json.loads(self.cluster.get("/load"))["server_load"], 0)
        self.assertIn("version", json.loads(self.cluster.get("/")))
        for method, path in (("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/")):
            with urllib.request.urlopen(urllib.request.Request(f"http://{self.cluster.address}{path}",
                                                               method=method)) as reply:
                self.assertEqual(reply.status, 200)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.embeddings.create(model="hash", input="Hi")
        self.assertIn("/v1/responses", caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.input_items.list("resp_1")

    def test_deadlines_and_clients_that_leave(self):
        late = {"max_output_tokens": 20000, "extra_body": {"deadline_s": 1e-6}}
        with self.assertRaises(openai.APIStatusError) as caught:
            self.create(**late)
        self.assertEqual(caught.exception.status_code, 504)
        # Its head may be out by then.
        try:
            last = list(self.create(stream=True, **late))[-1]
            self.assertEqual((last.type, last.response.status, last.response.error.code),
                             ("response.failed", "failed", "server_error"))
        except openai.APIStatusError as error:
            self.assertEqual(error.status_code, 504)
        stream = self.create(max_output_tokens=30000, stream=True)
        self.assertEqual(next(stream).type, "response.created")
        stream.close()
        while json.loads(self.cluster.get("/load"))["server_load"] > 0:
            pass

    def test_request_ids_and_timing(self):
        raw = self.client.responses.with_raw_response.create(
            model="hash", input="x", max_output_tokens=1, extra_headers={"x-request-id": "mine-1"},
            extra_body={"timing": True, "request_id": "resp_mine"})
        self.assertEqual(raw.headers["x-request-id"], "mine-1")
        answer = raw.parse()
        self.assertEqual(answer.id, "resp_mine")
        self.assertEqual(answer.model_extra["timing"][0]["decode_node"], "decode-0")


class RealModel(Strict, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = os.environ.get("TANDEM_MODELS") or os.path.expanduser("~/.cache/tandem/models")
        if not os.path.exists(f"{folder}/SmolLM2-135M-Instruct.Q4_1.gguf"):
            raise unittest.SkipTest("the model smollm2 has not been fetched")
        cls.cluster = client_test.Cluster("--model=smollm2", "--prefill=1", "--decode=1", "--kv-blocks=64",
                                          "--local-prefill-tokens=0")

    @classmethod
    def tearDownClass(cls):
        assert cls.cluster.stop() == 0

    def test_an_answer_over_both_nodes(self):
        with self.cluster.client() as client:
            answer = client.responses.create(model="smollm2", temperature=0, max_output_tokens=24,
                                             input="What is the capital of France?")
            self.assertEqual(answer.output_text, "The capital of France is Paris.")
            self.assertEqual((answer.status, answer.usage.input_tokens), ("completed", 37))

    def test_the_documents_example(self):
        text = (ROOT / "docs/CLIENTS.md").read_text()
        examples = [part.split("```")[0] for part in text.split("```python\n")[1:] if "responses" in part.split("```")[0]]
        self.assertTrue(examples)
        for example in examples:
            self.assertIn("http://127.0.0.1:8000", example)
            exec(example.replace("127.0.0.1:8000", self.cluster.address), {"print": lambda *parts, **_: None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    client_test.BUILD = known.build
    unittest.main(argv=["responses_test.py", *rest], verbosity=2)
