#!/usr/bin/env python3
"""Goal: the official openai client, unmodified, gets what OpenAI's API promises from disaggregated clusters.

    client_test.py --build DIR      [unittest arguments]

Runs against the hash engine, and against the real model where it has been fetched.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest
import urllib.request

wanted = os.environ.get("TANDEM_TEST_PYTHON")
if wanted and os.path.exists(wanted) and pathlib.Path(wanted).parent != pathlib.Path(sys.executable).parent:
    os.execv(wanted, [wanted, "-B", *sys.argv])
try:
    import openai
except ImportError:
    print("SKIPPED: the Python package openai is not installed")
    sys.exit(1 if os.environ.get("CI") == "true" else 77)

BUILD = None


class Cluster:
    """`tandem up` on ports of its own, until stop()."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [f"{BUILD}/bin/tandem", "up", "--grpc=127.0.0.1:0", "--http=0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("ready: "):
                self.address = line.split("HTTP on ")[1].split(";")[0].split(",")[0].strip()
                return
        raise RuntimeError("the cluster ended before it was ready")

    def client(self, **options):
        return openai.OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0, **options)

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}") as reply:
            return reply.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(f"http://{self.address}{path}", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status


class HashEngine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=512",
                              "--local-prefill-tokens=0", "--served-model-name=hash,org/hash 1%")
        cls.client = cls.cluster.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.cluster.stop() == 0

    def complete(self, **options):
        options = {"model": "hash", "prompt": "Hello", "max_tokens": 8, "seed": 7, **options}
        options.setdefault("extra_body", {}).setdefault("ignore_eos", True)
        return self.client.completions.create(**options)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], ["hash"])
        self.assertEqual(self.client.models.retrieve("hash").owned_by, "tandem")
        # Names like those of a model hub; the client writes the slash as %2F.
        self.assertEqual(self.client.models.retrieve("org/hash 1%").id, "hash")
        self.assertEqual(self.complete(model="org/hash 1%").choices[0].text, self.complete().choices[0].text)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_completion_and_usage(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens),
                         (5, 8, 13))
        again = self.complete()
        self.assertEqual(again.choices[0].text, answer.choices[0].text)
        long = "p" * 320
        self.complete(prompt=long)
        self.assertGreaterEqual(self.complete(prompt=long).usage.prompt_tokens_details.cached_tokens, 256)
        several = self.complete(prompt=long, n=3, temperature=1.0).usage
        self.assertEqual((several.prompt_tokens, several.completion_tokens), (320, 24))
        self.assertGreaterEqual(several.prompt_tokens_details.cached_tokens, 256)

    def test_usage_so_far_stands_in_every_chunk(self):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "model": "hash", "max_tokens": 5}
        options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for chunks in (list(self.complete(**options)),
                       list(self.client.chat.completions.create(**chat, **options))):
            last = chunks[-1].usage
            self.assertGreater(last.prompt_tokens, 0)
            self.assertTrue(all(c.usage.prompt_tokens == last.prompt_tokens for c in chunks))
            counts = [c.usage.completion_tokens for c in chunks]
            self.assertEqual(counts, sorted(counts))

    def test_streams_join_to_the_whole_answer(self):
        whole = self.complete(max_tokens=40)
        chunks = list(self.complete(max_tokens=40, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 40)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_prompts_in_four_forms(self):
        text = self.complete(prompt="ab").choices[0].text
        self.assertEqual(self.complete(prompt=[97, 98]).choices[0].text, text)
        batch = self.complete(prompt=["xy", "ab"])
        self.assertEqual([c.index for c in batch.choices], [0, 1])
        self.assertEqual(batch.choices[1].text, text)
        self.assertEqual(batch.usage.completion_tokens, 16)
        self.assertEqual(self.complete(prompt=[[97, 98], [1]]).choices[0].text, text)

    def test_n_choices_and_echo(self):
        answer = self.complete(n=3, temperature=1.0)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual(len({c.text for c in answer.choices}), 3)
        self.assertEqual(answer.usage.completion_tokens, 24)
        streamed = ["", "", ""]
        for chunk in self.complete(n=3, temperature=1.0, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(streamed, [c.text for c in answer.choices])
        self.assertEqual(self.complete(echo=True).choices[0].text, "Hello" + self.complete().choices[0].text)

    def test_completion_logprobs(self):
        logprobs = self.complete(logprobs=3).choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), 8)
        self.assertEqual(len(logprobs.token_logprobs), 8)
        self.assertEqual(logprobs.text_offset[0], 0)
        for token, value, tops in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertEqual(tops[token], value)

    def test_logprobs_of_a_long_prompt(self):
        # The router is told of them in parts of 1,024 tokens.
        prompt = "".join(chr(ord("a") + i * 7 % 26) for i in range(2500))
        whole = self.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=1).choices[0]
        logprobs = whole.logprobs
        self.assertEqual("".join(logprobs.tokens), whole.text)
        self.assertEqual(len(logprobs.token_logprobs), 2501)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertNotIn(None, logprobs.token_logprobs[1:])
        self.assertEqual(logprobs.text_offset, list(range(2501)))
        scored = self.complete(prompt=prompt, max_tokens=1, extra_body={"prompt_logprobs": 0})
        entries = scored.choices[0].model_extra["prompt_logprobs"]
        self.assertEqual(len(entries), 2500)
        self.assertEqual([entry[str(ord(c))]["logprob"] for entry, c in zip(entries[1:], prompt[1:])],
                         logprobs.token_logprobs[1:2500])

    def test_a_prompt_alone_is_scored(self):
        # As lm-eval asks for a text's likelihood.
        prompts = ["The sky is blue", "ab"]
        for n in (1, 2):
            answer = self.complete(prompt=prompts, echo=True, logprobs=2, max_tokens=0, n=n)
            self.assertEqual(answer.usage.completion_tokens, 0)
            self.assertEqual(answer.usage.prompt_tokens, 17)
            longer = self.complete(prompt=prompts, echo=True, logprobs=2, max_tokens=1, n=n)
            self.assertEqual(len(answer.choices), 2 * n)
            for choice, more in zip(answer.choices, longer.choices):
                self.assertEqual((choice.finish_reason, choice.text), ("length", prompts[choice.index // n]))
                count = len(choice.text)
                self.assertEqual(choice.logprobs.token_logprobs, more.logprobs.token_logprobs[:count])
                self.assertEqual(choice.logprobs.top_logprobs, more.logprobs.top_logprobs[:count])
        chunks = list(self.complete(echo=True, logprobs=2, max_tokens=0, stream=True,
                                    stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), "Hello")
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")
        self.assertEqual(chunks[-1].usage.completion_tokens, 0)
        self.assertEqual(self.complete(echo=True, max_tokens=0).choices[0].text, "Hello")
        scored = self.complete(max_tokens=0, extra_body={"prompt_logprobs": 0, "return_token_ids": True})
        self.assertEqual(scored.choices[0].text, "")
        self.assertEqual(scored.choices[0].model_extra["token_ids"], [])
        self.assertEqual(len(scored.choices[0].model_extra["prompt_logprobs"]), 5)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(max_tokens=0)
        self.assertEqual(caught.exception.param, "max_tokens")

    def test_prompts_may_be_cut(self):
        last = self.complete(prompt="lo")
        cut = self.complete(extra_body={"truncate_prompt_tokens": 2})
        self.assertEqual(cut.choices[0].text, last.choices[0].text)
        self.assertEqual(cut.usage.prompt_tokens, 2)
        long = "p" * 40000
        self.assertEqual(self.complete(prompt=[long, "lo"], echo=True, max_tokens=0,
                                       extra_body={"truncate_prompt_tokens": 3}).choices[0].text, "ppp")

    def test_the_last_message_is_continued(self):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, "}]
        answer = self.client.chat.completions.create(
            model="hash", messages=messages, max_tokens=6, seed=3,
            extra_body={"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True})
        prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello, "
        same = self.complete(prompt=self.cluster.post("/tokenize", {"prompt": prompt})["tokens"], max_tokens=6, seed=3)
        self.assertEqual(answer.choices[0].message.content, same.choices[0].text)
        tokens = self.cluster.post("/tokenize", {"messages": messages, "continue_final_message": True})["tokens"]
        self.assertEqual(len(tokens), answer.usage.prompt_tokens)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="hash", messages=messages, extra_body={
                "continue_final_message": True, "add_generation_prompt": True})
        self.assertEqual(caught.exception.param, "continue_final_message")

    def test_assistants_may_have_said_nothing(self):
        for said in ({"content": None}, {}, {"content": ""}):
            answer = self.client.chat.completions.create(
                model="hash", max_tokens=1,
                messages=[{"role": "assistant", **said}, {"role": "user", "content": "Hi"}])
            self.assertEqual(answer.usage.completion_tokens, 1)

    def test_stop_strings_end_the_answer(self):
        text = self.complete(max_tokens=30, temperature=0).choices[0].text
        stop = text[10:12]
        answer = self.complete(max_tokens=30, temperature=0, stop=[stop]).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertEqual(answer.text, text[:text.index(stop)])
        kept = self.complete(max_tokens=30, temperature=0, stop=stop,
                             extra_body={"include_stop_str_in_output": True}).choices[0]
        self.assertEqual(kept.text, text[:text.index(stop)] + stop)

    def test_tokens_may_be_limited(self):
        only = [ord(c) for c in "abc"]
        text = self.complete(max_tokens=20, extra_body={"allowed_token_ids": only, "ignore_eos": True})
        self.assertLessEqual(set(text.choices[0].text), set("abc"))

    def test_chat(self):
        options = {"model": "hash", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 6,
                   "seed": 3, "logprobs": True, "top_logprobs": 2, "extra_body": {"ignore_eos": True}}
        whole = self.client.chat.completions.create(**options)
        self.assertEqual(whole.object, "chat.completion")
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.usage.completion_tokens, 6)
        content = whole.choices[0].logprobs.content
        self.assertEqual(len(content), 6)
        self.assertEqual(len(content[0].top_logprobs), 2)
        chunks = list(self.client.chat.completions.create(stream=True, **options))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks),
                         whole.choices[0].message.content)
        streamed = [one for c in chunks if c.choices[0].logprobs for one in c.choices[0].logprobs.content]
        self.assertEqual([one.logprob for one in streamed], [one.logprob for one in content])

    def test_guided_choice_and_json(self):
        answer = self.complete(max_tokens=20, extra_body={"guided_choice": ["left", "right"], "ignore_eos": False})
        self.assertIn(answer.choices[0].text, ("left", "right"))
        schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
                  "additionalProperties": False}
        answer = self.client.chat.completions.create(
            model="hash", messages=[{"role": "user", "content": "?"}], max_tokens=400,
            response_format={"type": "json_schema", "json_schema": {"name": "switch", "schema": schema}})
        if answer.choices[0].finish_reason == "stop":
            self.assertIn(json.loads(answer.choices[0].message.content)["on"], (True, False))

    def test_named_tool(self):
        tool = {"type": "function", "function": {"name": "flip", "parameters": {"enum": [{"x": 1}]}}}
        answer = self.client.chat.completions.create(
            model="hash", messages=[{"role": "user", "content": "?"}], max_tokens=60, tools=[tool],
            tool_choice={"type": "function", "function": {"name": "flip"}})
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "flip")
        self.assertEqual(json.loads(call.function.arguments), {"x": 1})

    def test_one_call_where_they_are_not_parallel(self):
        tool = {"type": "function", "function": {"name": "flip", "parameters": {"enum": [{"x": 1}]}}}
        several = 0
        for seed in range(8):
            body = {"model": "hash", "messages": [{"role": "user", "content": "?"}], "max_tokens": 400, "seed": seed,
                    "tools": [tool], "tool_choice": "required", "temperature": 1}
            calls = self.client.chat.completions.create(**body).choices[0].message.tool_calls
            several += calls is None or len(calls) > 1
            one = self.client.chat.completions.create(parallel_tool_calls=False, **body).choices[0]
            self.assertEqual([call.function.name for call in one.message.tool_calls], ["flip"])
            self.assertEqual(one.finish_reason, "tool_calls")
        self.assertGreater(several, 0)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.complete(model="other")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="x" * 40000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_request_ids_and_timing(self):
        raw = self.client.completions.with_raw_response.create(
            model="hash", prompt="x", max_tokens=1, extra_headers={"x-request-id": "mine-1"},
            extra_body={"timing": True})
        self.assertEqual(raw.headers["x-request-id"], "mine-1")
        timing = raw.parse().model_extra["timing"][0]
        self.assertGreater(timing["total_ms"], 0)
        self.assertEqual(timing["decode_node"], "decode-0")

    def test_tokens_and_state(self):
        tokens = self.cluster.post("/tokenize", {"model": "hash", "prompt": "hi"})
        self.assertEqual((tokens["count"], tokens["tokens"]), (2, [104, 105]))
        self.assertEqual(self.cluster.post("/detokenize", {"tokens": [104, 105]}), {"prompt": "hi"})
        for path in ("/health", "/live", "/ready"):
            self.cluster.get(path)
        self.assertIn("version", json.loads(self.cluster.get("/version")))
        metrics = self.cluster.get("/metrics")
        for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket",
                     "tandem_node_blocks_used", "vllm:generation_tokens_total"):
            self.assertIn(name, metrics)


class RealModel(unittest.TestCase):
    def test_chat_over_both_nodes(self):
        folder = os.environ.get("TANDEM_MODELS") or os.path.expanduser("~/.cache/tandem/models")
        if not os.path.exists(f"{folder}/SmolLM2-135M-Instruct.Q4_1.gguf"):
            self.skipTest("the model smollm2 has not been fetched")
        cluster = Cluster("--model=smollm2", "--prefill=1", "--decode=1", "--kv-blocks=64",
                          "--local-prefill-tokens=0")
        try:
            with cluster.client() as client:
                model = client.models.list().data[0].id
                answer = client.chat.completions.create(
                    model=model, temperature=0, max_tokens=24,
                    messages=[{"role": "user", "content": "What is the capital of France?"}])
                self.assertEqual(answer.choices[0].message.content, "The capital of France is Paris.")
                self.assertEqual(answer.choices[0].finish_reason, "stop")
                self.assertEqual(answer.usage.prompt_tokens, 37)
                zebra = cluster.post("/tokenize", {"prompt": " zebra"})["tokens"][0]
                biased = client.completions.create(model=model, prompt="A", temperature=0, max_tokens=3,
                                                   logit_bias={str(zebra): 100}, logprobs=0,
                                                   extra_body={"return_token_ids": True})
                self.assertEqual(biased.choices[0].model_extra["token_ids"], [zebra] * 3)
        finally:
            self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    BUILD = known.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
