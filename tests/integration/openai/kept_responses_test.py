#!/usr/bin/env python3
"""Goal: responses that a router keeps are seen by the API key that asked for them and no other, make room
for each other as the bound says, and a router told to keep none says so.

    kept_responses_test.py --build DIR      [unittest arguments]
"""
import argparse
import hashlib
import re
import signal
import subprocess
import tempfile
import unittest

import client_test
import openai


class Router:
    """A router with these flags and one decode node of the hash engine, until stop()."""

    def __init__(self, *flags):
        self.processes = []
        line = self.start("tandem-router", "router started", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
                          "--http=127.0.0.1:0", *flags)
        self.address = re.search(r" http=(\S+)", line)[1]
        self.start("tandem-decode-node", "joined router", "--kv-blocks=512",
                   "--routers=" + re.search(r" fleet=(\S+)", line)[1])

    def start(self, program, awaited, *flags):
        process = subprocess.Popen([f"{client_test.BUILD}/bin/{program}", "--engine=hash", *flags], text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        for line in process.stderr:
            if awaited in line:
                return line
        raise RuntimeError(f"{program} ended before it was ready")

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"http://{self.address}/v1", api_key=key, max_retries=0)

    def stop(self):
        statuses = []
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            statuses.append(process.wait(timeout=60))
            process.stderr.close()
        return statuses


class KeptResponses(unittest.TestCase):
    def test_responses_are_of_their_key(self):
        with tempfile.NamedTemporaryFile("w") as file:
            for name in ("alice", "bob"):
                file.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n")
            file.write(f"carol {hashlib.sha256(b'carol').hexdigest()} requests_per_minute=1\n")
            file.flush()
            router = Router(f"--api-keys={file.name}", "--responses-kept=2")
        try:
            alice, bob = router.client("alice"), router.client("bob")
            model = alice.models.list().data[0].id
            ask = {"model": model, "input": "Hi", "max_output_tokens": 2}
            with self.assertRaises(openai.AuthenticationError):
                with router.client("eve") as eve:
                    eve.responses.create(**ask)
            with router.client("carol") as carol:
                carol.responses.create(store=False, **ask)
                with self.assertRaises(openai.RateLimitError):
                    carol.responses.create(**ask)
            answer = alice.responses.create(**ask)
            self.assertEqual(alice.responses.retrieve(answer.id).output_text, answer.output_text)
            for wrong in (lambda: bob.responses.retrieve(answer.id), lambda: bob.responses.delete(answer.id),
                          lambda: bob.responses.create(previous_response_id=answer.id, **ask)):
                with self.assertRaises(openai.NotFoundError):
                    wrong()
            # The key with the most stored responses makes room.
            ids = [bob.responses.create(**ask).id for _ in range(3)]
            alice.responses.retrieve(answer.id)
            bob.responses.retrieve(ids[-1])
            with self.assertRaises(openai.NotFoundError):
                bob.responses.retrieve(ids[0])
            alice.close()
            bob.close()
        finally:
            self.assertEqual(router.stop(), [0, 0])

    def test_a_router_that_keeps_none(self):
        router = Router("--responses-kept=0")
        try:
            with router.client() as client:
                ask = {"model": client.models.list().data[0].id, "input": "Hi", "max_output_tokens": 2}
                answer = client.responses.create(store=True, **ask)
                self.assertEqual(answer.model_extra["store"], False)
                with self.assertRaises(openai.NotFoundError):
                    client.responses.retrieve(answer.id)
                with self.assertRaises(openai.BadRequestError) as caught:
                    client.responses.create(previous_response_id=answer.id, **ask)
                self.assertEqual((caught.exception.param, caught.exception.code),
                                 ("previous_response_id", "unsupported_parameter"))
        finally:
            self.assertEqual(router.stop(), [0, 0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    client_test.BUILD = known.build
    unittest.main(argv=["kept_responses_test.py", *rest], verbosity=2)
