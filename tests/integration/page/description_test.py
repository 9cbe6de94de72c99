#!/usr/bin/env python3
"""Goal: /openapi.json describes what a router really serves, the page comes with its policy and from the router
alone, and the status and the traces tell each key what it may see.

    description_test.py --build DIR      [unittest arguments]
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

wanted = os.environ.get("TANDEM_TEST_PYTHON")
if wanted and os.path.exists(wanted) and pathlib.Path(wanted).parent != pathlib.Path(sys.executable).parent:
    os.execv(wanted, [wanted, "-B", *sys.argv])

from cluster import Cluster

BUILD = None
JSON = {"content_type": "application/json"}


def post(cluster, path, body, **headers):
    return cluster.fetch(path, "POST", json.dumps(body).encode(), **JSON, **headers)


class Description(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, "--prefill=1", "--decode=1", "--kv-blocks=512", "--local-prefill-tokens=0")
        cls.document = json.loads(cls.cluster.fetch("/openapi.json")[2])

    @classmethod
    def tearDownClass(cls):
        assert cls.cluster.stop() == 0

    def test_it_is_valid(self):
        try:
            import openapi_spec_validator
        except ImportError:
            self.skipTest("the Python package openapi-spec-validator is not installed")
        openapi_spec_validator.validate(self.document)

    def test_every_path_is_served_with_its_methods_only(self):
        for path, methods in self.document["paths"].items():
            real = re.sub(r"\{\w+\}", "none", path)
            for method in ("GET", "POST", "DELETE"):
                status, headers, _ = self.cluster.fetch(real, method, b"{}" if method == "POST" else None, **JSON)
                with self.subTest(path=path, method=method):
                    if method.lower() in methods:
                        self.assertNotEqual(status, 405)
                    else:
                        self.assertEqual(status, 405)
                        self.assertNotIn(method, headers["allow"].split(", "))

    def test_a_strict_router_knows_every_described_field(self):
        hello = [{"role": "user", "content": "Hello"}]
        least = {"/v1/completions": {"prompt": "Hello", "max_tokens": 3},
                 "/v1/chat/completions": {"messages": hello, "max_tokens": 3},
                 "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
                 "/v1/responses/input_tokens": {"input": "Hello"},
                 "/tokenize": {"messages": hello}, "/detokenize": {"tokens": [1, 2]},
                 "/v1/messages": {"messages": hello, "max_tokens": 3},
                 "/v1/messages/count_tokens": {"messages": hello},
                 "/api/chat": {"model": "hash", "messages": hello, "options": {"num_predict": 3}},
                 "/api/generate": {"model": "hash", "prompt": "Hello", "options": {"num_predict": 3}},
                 "/api/show": {"model": "hash"}}
        for path, methods in self.document["paths"].items():
            content = methods.get("post", {}).get("requestBody", {}).get("content")
            if content is None:
                continue
            name = content["application/json"]["schema"]["$ref"].split("/")[-1]
            fields = self.document["components"]["schemas"][name]["properties"]
            with self.subTest(path=path):
                status, _, body = post(self.cluster, path, {**dict.fromkeys(fields), **least[path]},
                                       x_tandem_strict="1")
                self.assertEqual(status, 200, body)

    def test_status_follows_its_schema(self):
        status = json.loads(self.cluster.fetch("/status")[2])
        schema = self.document["components"]["schemas"]["ClusterStatus"]
        self.assertLessEqual(set(status), set(schema["properties"]))
        node = status["nodes"][0]
        described = schema["properties"]["nodes"]["items"]["properties"]
        self.assertEqual(set(node["load"]), set(described["load"]["properties"]))
        self.assertEqual(sorted(each["role"] for each in status["nodes"]), ["decode", "prefill"])
        self.assertRegex(node["load"]["blocks_total"], r"^\d+$")

    def test_a_request_leaves_a_trace(self):
        status, _, body = post(self.cluster, "/v1/completions",
                               {"prompt": "Where did the time go?", "max_tokens": 5, "request_id": "a/b c", "ignore_eos": True})
        self.assertEqual(status, 200, body)
        listed = json.loads(self.cluster.fetch("/traces")[2])["traces"]
        self.assertEqual(listed[0]["request_id"], "a/b c")
        self.assertEqual(listed[0]["output_tokens"], 5)
        trace = json.loads(self.cluster.fetch("/traces/a%2Fb%20c")[2])
        self.assertEqual(trace["sequences"][0]["usage"]["output_tokens"], 5)
        self.assertGreater(trace["sequences"][0]["timing"]["total_ms"], 0)
        status, _, body = self.cluster.fetch("/traces/unknown")
        self.assertEqual(status, 404)
        self.assertIn("unknown", json.loads(body)["error"]["message"])

    def test_browsers_get_the_page_and_others_the_version(self):
        status, headers, body = self.cluster.fetch("/", accept="text/html,application/xhtml+xml,*/*;q=0.8")
        self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
        self.assertEqual(headers["vary"], "accept")
        self.assertIn("<title>Tandem</title>", body)
        status, headers, body = self.cluster.fetch("/", accept="*/*")
        self.assertEqual(list(json.loads(body)), ["version"])
        self.assertEqual(headers["content-type"], "application/json")

    def test_the_page_comes_from_the_router_alone(self):
        folder = pathlib.Path(__file__).parents[3] / "router/front_end/http/page"
        for file in sorted(folder.iterdir()):
            status, headers, body = self.cluster.fetch(f"/page/{file.name}")
            with self.subTest(file=file.name):
                self.assertEqual((status, body), (200, file.read_text(encoding="utf-8")))
                policy = headers["content-security-policy"]
                self.assertIn("default-src 'none'", policy)
                self.assertNotIn("unsafe", policy)
                self.assertEqual(headers["x-content-type-options"], "nosniff")
                # No address of another server, but for the names of XML.
                addresses = set(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]+[^\s\"')]*", body))
                self.assertLessEqual(addresses, {"http://www.w3.org/2000/svg"})
                self.assertNotRegex(body, r"\son\w+=\"|innerHTML|style=\"")
        for name in ("none", "../http_api.h", "%2e%2e/http_api.h", ""):
            self.assertEqual(self.cluster.fetch(f"/page/{name}")[0], 404)


class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tandem-page-")
        lines = [f"{tenant} {hashlib.sha256(tenant.encode()).hexdigest()} {settings}"
                 for tenant, settings in (("alice", "requests_per_minute=2"), ("bob", ""), ("root", "scopes=infer,admin"))]
        keys = pathlib.Path(cls.folder.name, "keys")
        keys.write_text("\n".join(lines) + "\n", encoding="utf-8")
        cls.cluster = Cluster(BUILD, "--prefill=0", "--decode=1", "--kv-blocks=512", f"--api-keys={keys}")

    @classmethod
    def tearDownClass(cls):
        assert cls.cluster.stop() == 0
        cls.folder.cleanup()

    def get(self, path, tenant):
        status, _, body = self.cluster.fetch(path, authorization=f"Bearer {tenant}")
        return status, json.loads(body)

    def test_what_needs_a_key_asks_for_one(self):
        paths = json.loads(self.cluster.fetch("/openapi.json")[2])["paths"]
        for path, methods in paths.items():
            for method, about in methods.items():
                real = re.sub(r"\{\w+\}", "none", path)
                status = self.cluster.fetch(real, method.upper(), b"{}" if method == "post" else None, **JSON)[0]
                with self.subTest(path=path, method=method):
                    self.assertEqual(status == 401, "security" in about)

    def test_a_key_sees_its_own_requests(self):
        for tenant in ("alice", "bob"):
            status, _, body = post(self.cluster, "/v1/completions", {"prompt": "x", "max_tokens": 2, "request_id": f"of-{tenant}"},
                                   authorization=f"Bearer {tenant}")
            self.assertEqual(status, 200, body)
        listed = {tenant: [trace["request_id"] for trace in self.get("/traces", tenant)[1]["traces"]]
                  for tenant in ("alice", "bob", "root")}
        self.assertEqual(listed, {"alice": ["of-alice"], "bob": ["of-bob"], "root": ["bob/of-bob", "alice/of-alice"]})
        self.assertEqual(self.get("/traces/of-alice", "alice")[0], 200)
        self.assertEqual(self.get("/traces/of-alice", "bob")[0], 404)
        self.assertEqual(self.get("/traces/alice/of-alice", "bob")[0], 404)
        self.assertEqual(self.get("/traces/alice%2Fof-alice", "root")[0], 200)

    def test_looking_does_not_count_as_asking(self):
        for _ in range(20):
            self.assertEqual(self.get("/status", "alice")[0], 200)
            self.assertEqual(self.get("/traces", "alice")[0], 200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    BUILD = known.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
