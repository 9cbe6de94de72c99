#!/usr/bin/env python3
"""Goal: a model that is fetched is the one that the hub lists, whole or not there at all, however connections break
and whatever the hub says; a token goes to the hub alone; errors say what to do.

    pull_test.py --build DIR      [unittest arguments]
"""
import argparse
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from hub import COMMIT, Hub

BUILD = None
DATE, LATER = "Tue, 03 Feb 2026 04:05:06 GMT", "Wed, 04 Feb 2026 04:05:06 GMT"
SEED = random.SystemRandom().randrange(1 << 32)


def contents(size, seed):
    return random.Random(seed).randbytes(size)


class Pull(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-pull-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.files = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": contents(5000, 1),
                      "model.safetensors": contents(300_000, 2), "README.md": b"not needed"}
        self.hub = Hub(self.files)
        self.addCleanup(self.hub.stop)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "HF_ENDPOINT": self.hub.url,
                    "TANDEM_MODELS": str(self.folder / "models")}

    def tandem(self, *args, **env):
        run = subprocess.run([f"{BUILD}/bin/tandem", *args], env={**self.env, **env}, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=120)
        return run.returncode, run.stdout + run.stderr

    def pull(self, name="hf:org/name", *args, **env):
        return self.tandem("pull", "--attempts=3", *args, name, **env)

    def models(self):
        return json.loads(self.tandem("models", "--json")[1])

    def check(self, name="hf:org/name", names=("config.json", "model.safetensors", "tokenizer.json")):
        """The model is here, and has these files with the hub's bytes and no others."""
        model, = [each for each in self.models() if each["name"] == name]
        folder = pathlib.Path(model["path"])
        folder = folder if folder.is_dir() else folder.parent
        here = {path.name for path in folder.iterdir()} - {"manifest.json", ".lock"}
        self.assertEqual(here, set(names))
        for each in names:
            self.assertEqual((folder / each).read_bytes(), self.hub.files[each], each)

    def expect_failure(self, words, *args, models=(), **env):
        """`models`: those that are here all the same."""
        code, output = self.pull(*args, **env)
        self.assertNotEqual(code, 0, output)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, output)
        self.assertEqual([model["name"] for model in self.models()], list(models))
        return output

    # ---- what goes well

    def test_lists_what_the_script_fetched(self):
        folder = self.folder / "models"
        folder.mkdir(parents=True, exist_ok=True)
        name = "SmolLM2-135M-Instruct.Q4_1.gguf"
        (folder / name).write_bytes(bytes(2048))
        # What the script and nodes have made of it, and what is another's.
        for suffix in (".verified", ".cpu-avx2.f32.packed", ".cpu-avx512.f32.packed"):
            (folder / f"{name}{suffix}").write_bytes(bytes(1024))
        others = ["another.gguf", f"another-{name}.cpu-avx2.f32.packed", f"{name}.notes"]
        for other in others:
            (folder / other).write_bytes(b"kept")
        self.assertEqual([(model["name"], model["bytes"]) for model in self.models()], [("smollm2", 2048)])
        self.assertIn("smollm2", self.tandem("models")[1])
        code, output = self.tandem("models", "--remove", "smollm2")
        self.assertEqual((code, output), (0, "smollm2: removed, 5.1 kB\n"))
        self.assertEqual(sorted(path.name for path in folder.iterdir()), sorted(others))
        self.assertIn("no models; tandem pull hf:ORG/NAME brings one", self.tandem("models")[1])

    def test_the_needed_files_come(self):
        code, output = self.pull()
        self.assertEqual(code, 0, output)
        self.assertIn("in 3 files", output)
        self.check()
        self.assertEqual(self.models()[0]["commit"], COMMIT)

    def test_what_is_here_is_not_fetched_again(self):
        self.pull()
        files = len(self.hub.requests("/resolve/"))
        self.assertEqual(self.pull()[0], 0)
        self.assertEqual([path for path, _ in self.hub.seen if "safetensors" in path],
                         [f"/org/name/resolve/{COMMIT}/model.safetensors"])
        self.assertEqual(len(self.hub.requests("/resolve/")), files)
        self.check()

    def test_an_address_whose_file_has_not_changed_is_not_fetched_again(self):
        for etags, modified in (("strong", ""), ("weak", ""), ("", DATE)):
            with self.subTest(etags=etags, modified=modified):
                self.hub.etags, self.hub.modified = etags, modified
                self.hub.files = {"a.gguf": contents(70_000, 6)}
                url = f"{self.hub.url}/{etags}/a.gguf"
                self.assertEqual(self.pull(url)[0], 0)
                self.hub.break_after = [10]  # not enough to bring it
                code, output = self.pull(url, "--attempts=1")
                self.assertEqual((code, self.hub.break_after), (0, [10]), output)
                self.check(url, ["a.gguf"])
                self.hub.break_after = []
                self.hub.files["a.gguf"] = contents(60_000, 7)
                self.hub.modified = modified and LATER
                self.assertEqual(self.pull(url)[0], 0)
                self.check(url, ["a.gguf"])

    def test_a_failed_pull_leaves_a_whole_model_as_it_was(self):
        self.hub.files["a.gguf"] = contents(70_000, 6)
        url = f"{self.hub.url}/a.gguf"
        names = ["hf:org/name", url]
        for name in names:
            self.assertEqual(self.pull(name)[0], 0)
        old = dict(self.hub.files)
        self.hub.files = {name: data[::-1] for name, data in old.items()}
        self.hub.break_after = [None, None, 1000, 1000]
        for name in names:
            self.expect_failure("model.safetensors" if name != url else url, name, "--attempts=1", models=names)
        self.hub.stop()
        for name in names:
            self.expect_failure(self.hub.url, name, "--attempts=1", models=names)
        for model in self.models():
            path = pathlib.Path(model["path"])
            for each in [path] if path.is_file() else path.iterdir():
                if each.name in old:
                    self.assertEqual(each.read_bytes(), old[each.name], each.name)

    def test_a_new_commits_files_replace_the_old(self):
        self.pull()
        self.hub.files["model.safetensors"] = contents(200_000, 3)
        self.assertEqual(self.pull()[0], 0)
        self.check()

    def test_files_that_a_new_commit_dropped_go(self):
        shards = {f"model-{i}.safetensors": contents(20_000, 20 + i) for i in (1, 2)}
        old = {**self.files, **shards, "model.safetensors.index.json": b"{}", "chat_template.jinja": b"old"}
        del old["model.safetensors"]
        self.hub.files = old
        self.assertEqual(self.pull()[0], 0)
        folder = pathlib.Path(self.models()[0]["path"])
        (folder / "generation_config.json").write_bytes(b"the user's")
        # Until the new model is whole, nothing that was there is lost.
        self.hub.files = self.files
        self.hub.break_after = [1000]  # of the one file that is not here
        self.expect_failure("model.safetensors", "hf:org/name", "--attempts=1", models=["hf:org/name"])
        self.assertEqual((folder / "chat_template.jinja").read_bytes(), b"old")
        self.assertEqual(self.pull()[0], 0)
        self.assertEqual((folder / "generation_config.json").read_bytes(), b"the user's")
        (folder / "generation_config.json").unlink()
        self.check()

    def test_all_texts_that_a_model_is_opened_with_come(self):
        header = (pathlib.Path(__file__).parents[3] / "common/model/hf_checkpoint.h").read_text("utf-8")
        names = re.findall(r'File = "([^"]+)";', header)
        self.assertIn("hf_quant_config.json", names)
        self.hub.files.update({name: name.encode() for name in names})
        self.assertEqual(self.pull()[0], 0)
        self.check(names=["model.safetensors", *names])

    def test_one_gguf_file_of_several(self):
        self.hub.files = {"a-q4.gguf": contents(9000, 4), "a-q8.gguf": contents(9500, 5)}
        self.expect_failure(["a-q4.gguf, a-q8.gguf", "hf:org/name:a-q4.gguf"])
        code, output = self.pull("hf:org/name:a-q8.gguf")
        self.assertEqual(code, 0, output)
        self.check("hf:org/name:a-q8.gguf", ["a-q8.gguf"])
        self.assertTrue(self.models()[0]["path"].endswith("/a-q8.gguf"))

    def test_an_address_of_a_file(self):
        self.hub.files = {"a.gguf": contents(70_000, 6)}
        self.hub.break_after = [1000]
        url = f"{self.hub.url}/some/where/a.gguf?download=true"
        code, output = self.pull(url)
        self.assertEqual(code, 0, output)
        self.check(url, ["a.gguf"])

    def test_a_revision_has_a_folder_of_its_own(self):
        self.pull()
        self.assertEqual(self.pull("hf:org/name@v2")[0], 0)
        self.assertTrue(any("/revision/v2?" in path for path, _ in self.hub.seen))
        self.assertEqual([model["name"] for model in self.models()], ["hf:org/name", "hf:org/name@v2"])
        self.assertEqual(self.tandem("models", "--remove", "hf:org/name")[0], 0)
        self.check("hf:org/name@v2")

    # ---- connections

    def test_broken_connections_cost_what_had_not_arrived(self):
        print("seed", SEED)
        draw = random.Random(SEED)
        self.hub.break_after = [draw.randrange(1, 60_000) for _ in range(12)]
        code, output = self.pull()
        self.assertEqual(code, 0, output)
        self.check()
        ranges = [headers["Range"] for headers in self.hub.requests("model.safetensors") if "Range" in headers]
        self.assertGreater(len(ranges), 2)
        self.assertTrue(all(headers.get("If-Range") for headers in self.hub.requests("model.safetensors")
                            if "Range" in headers))

    def test_a_server_that_ignores_ranges(self):
        self.hub.ranges = False
        self.hub.break_after = [100, 4000, 100_000]
        self.assertEqual(self.pull()[0], 0)
        self.check()

    def test_another_process_goes_on(self):
        self.hub.break_after = [200_000, 0, 0, 0]
        self.hub.files = {"a.gguf": contents(300_000, 7)}
        self.expect_failure("a.gguf")
        self.hub.seen.clear()
        self.assertEqual(self.pull()[0], 0)
        self.check(names=["a.gguf"])
        self.assertEqual(self.hub.requests("a.gguf")[0]["Range"], "bytes=200000-")

    def test_finished_files_outlast_a_failed_pull(self):
        shards = {f"model-{i}.safetensors": contents(20_000 + i, 30 + i) for i in (1, 2, 3)}
        self.hub.files = {"config.json": b"{}", **shards}
        self.hub.break_after = [None, None, None, 1000]
        self.expect_failure("model-3.safetensors", "hf:org/name", "--attempts=1")
        # One that was damaged meanwhile is fetched again.
        folder = self.folder / "models/hf/org/name/main"
        (folder / "model-2.safetensors").write_bytes(b"short")
        self.hub.seen.clear()
        self.assertEqual(self.pull()[0], 0)
        self.check(names=list(self.hub.files))
        self.assertEqual(self.hub.requests("model-1"), [])
        self.assertEqual(self.hub.requests("model-3")[0]["Range"], "bytes=1000-")

    def test_a_replaced_file_is_not_taken_for_the_old_one(self):
        old, new = contents(20_000, 40), contents(20_000, 41)
        self.hub.files = {"model-1.safetensors": old, "model-2.safetensors": old}
        self.assertEqual(self.pull()[0], 0)
        self.hub.files = {"model-1.safetensors": new, "model-2.safetensors": new}
        self.hub.break_after = [None, 1000]
        self.expect_failure("model-2.safetensors", "hf:org/name", "--attempts=1", models=["hf:org/name"])
        self.hub.files = {"model-1.safetensors": old, "model-2.safetensors": old}
        self.assertEqual(self.pull()[0], 0)
        self.check(names=list(self.hub.files))

    def test_a_file_that_changed_meanwhile_is_begun_anew(self):
        self.hub.files = {"a.gguf": contents(300_000, 8)}
        self.hub.break_after = [200_000, 0, 0]
        self.expect_failure("a.gguf")
        self.hub.files["a.gguf"] = contents(300_000, 9)
        self.assertEqual(self.pull()[0], 0)
        self.check(names=["a.gguf"])

    def test_an_address_whose_file_changed_meanwhile_is_begun_anew(self):
        """Nothing but what the server says of the file tells that it is another one."""
        for etags, modified, later, checks in (("strong", "", "", True), ("weak", "", "", True), ("", "", "", True),
                                               ("", DATE, LATER, True), ("weak", DATE, LATER, True),
                                               ("strong", "", "", False), ("", DATE, LATER, False)):
            with self.subTest(etags=etags, modified=modified, checks_if_range=checks):
                self.hub.etags, self.hub.modified, self.hub.checks_if_range = etags, modified, checks
                self.hub.files = {"a.gguf": contents(300_000, 8)}
                self.hub.break_after = [200_000]
                url = f"{self.hub.url}/{etags}/{modified[:3]}/{checks}/a.gguf"
                self.expect_failure("a.gguf", url, "--attempts=1", models=[model["name"] for model in self.models()])
                self.hub.files["a.gguf"], self.hub.modified = contents(300_000, 9), later
                self.assertEqual(self.pull(url)[0], 0)
                self.check(url, ["a.gguf"])

    def test_an_address_goes_on_where_it_was_by_a_date(self):
        self.hub.etags, self.hub.modified = "", DATE
        self.hub.files = {"a.gguf": contents(300_000, 8)}
        self.hub.break_after = [200_000]
        url = f"{self.hub.url}/a.gguf"
        self.expect_failure("a.gguf", url, "--attempts=1")
        self.hub.seen.clear()
        self.assertEqual(self.pull(url)[0], 0)
        self.check(url, ["a.gguf"])
        headers, = self.hub.requests("a.gguf")
        self.assertEqual((headers["Range"], headers["If-Range"]), ("bytes=200000-", DATE))

    def test_an_address_whose_last_byte_came_is_not_fetched_again(self):
        """As when the process is killed between a file's last byte and its name."""
        self.hub.files = {"a.gguf": contents(300_000, 8)}
        self.hub.break_after = [200_000]
        url = f"{self.hub.url}/a.gguf"
        self.expect_failure("a.gguf", url, "--attempts=1")
        part, = self.folder.rglob("*.part")
        part.write_bytes(self.hub.files["a.gguf"])
        own = part.parent / "notes.part"
        own.write_bytes(b"not the command's")
        self.hub.seen.clear()
        self.assertEqual(self.pull(url)[0], 0)
        headers, = self.hub.requests("a.gguf")
        self.assertEqual(headers["Range"], "bytes=300000-")
        self.assertEqual(own.read_bytes(), b"not the command's")
        own.unlink()
        self.check(url, ["a.gguf"])

    def test_interrupted(self):
        self.hub.files = {"a.gguf": contents(300_000, 10)}
        self.hub.statuses = [(503, [("retry-after", "60")])]
        process = subprocess.Popen([f"{BUILD}/bin/tandem", "pull", "hf:org/name"], env=self.env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertTrue(self.hub.asked.wait(60))
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assertIn(b"interrupted", process.stderr.read())
        process.stderr.close()

    def test_busy_servers_are_asked_again(self):
        self.hub.statuses = [(503, []), (429, [("retry-after", "1")])]
        self.assertEqual(self.pull()[0], 0)
        self.check()

    # ---- what servers say

    def test_wrong_bytes(self):
        for fault in ({"lfs": {"sha256": "0" * 64}}, {"lfs": {"sha256": "f" * 64, "size": 1}}):
            self.hub.listed = {"model.safetensors": fault}
            self.expect_failure(["model.safetensors", "has SHA-256"])
        self.hub.listed = {"config.json": {"blobId": "0" * 40}}
        self.expect_failure(["config.json", "has git hash"])

    def test_wrong_sizes(self):
        self.hub.listed = {"model.safetensors": {"size": 299_999}}
        self.expect_failure("sends more than the 299999 bytes")
        self.hub.listed = {"model.safetensors": {"size": 300_001}}
        self.expect_failure("has 300000 bytes, and its list names 300001")
        self.hub.listed = {"model.safetensors": {"size": 1 << 60}}
        self.expect_failure("are free")

    def test_names_that_leave_the_folder(self):
        data = b"evil"
        for name in ("../evil.safetensors", "/evil.json", "sub/model.safetensors", ".bashrc", "..", "a\\b.gguf"):
            self.hub.extra_siblings.append({"rfilename": name, "size": len(data), "blobId": "0" * 40})
        self.assertEqual(self.pull()[0], 0)
        self.check()
        self.assertEqual(list(self.folder.rglob("*evil*")), [])

    def test_lists_of_another_form(self):
        for siblings in (["x"], [{"rfilename": 5, "size": "large"}], [{}]):
            self.hub.files, self.hub.extra_siblings = {}, siblings
            self.expect_failure("neither safetensors nor GGUF")
        self.hub.statuses = [(200, [])]
        self.expect_failure("expected a model's commit")

    def test_missing(self):
        self.expect_failure("404", "hf:org/other")
        self.hub.extra_siblings = [{"rfilename": "model-2.safetensors", "size": 3, "lfs": {"sha256": "0" * 64}}]
        self.expect_failure(["model-2.safetensors", "404"])

    def test_an_answer_without_a_file_is_not_taken_for_one(self):
        """As 304, that nothing has changed, to a request that names nothing to compare with."""
        url = f"{self.hub.url}/a.gguf"
        self.hub.files["a.gguf"] = contents(5000, 50)
        for status in (304, 204):
            for name, before in (("hf:org/name", [None]), (url, [])):
                self.hub.statuses = before + [(status, [])]
                self.expect_failure(f"the server answered {status}, expected 200 or 206", name)
        # The file of an older commit is not current for it.
        self.assertEqual(self.pull()[0], 0)
        self.hub.files["config.json"] = b'{"model_type": "gemma"}'
        self.hub.statuses = [None, (304, [])]
        self.expect_failure("the server answered 304", models=["hf:org/name"])
        self.assertEqual(self.pull()[0], 0)
        self.check()

    def test_redirects_without_an_end(self):
        self.hub.file_host = self.hub.url
        self.expect_failure("redirect")

    # ---- tokens

    def test_a_token_goes_to_the_hub_alone(self):
        other = Hub(self.files)
        self.addCleanup(other.stop)
        # Another host for libcurl and for us: the name, not the address.
        self.hub.file_host = other.url.replace("127.0.0.1", "localhost")
        self.hub.token = "secret"
        self.expect_failure(["401", "HF_TOKEN"])
        self.expect_failure("the token that was sent may not read it", HF_TOKEN="wrong")
        self.assertEqual(self.pull(HF_TOKEN="secret")[0], 0)
        self.check()
        self.assertGreater(len(other.seen), 0)
        for _, headers in other.seen:
            self.assertNotIn("authorization", {name.lower() for name in headers})
        (self.folder / ".cache/huggingface").mkdir(parents=True)
        (self.folder / ".cache/huggingface/token").write_text("secret\n")
        self.assertEqual(self.pull("hf:org/name@v3")[0], 0)

    # ---- names and use

    def test_names_are_checked(self):
        for name in ("org/name", "hf:org", "hf:org/name/more", "hf:../name", "hf:org/na me", "hf:org/name@", "hf:/",
                     "https://host/model.bin", "ftp://host/a.gguf", "http://example.com/a.gguf", "https://host", "",
                     "http://127.0.0.1.invalid/a.gguf", "http://127.evil/a.gguf", "http://localhost:x@127.0.0.2/a.gguf",
                     f"http://127.0.0.1@{self.hub.url.removeprefix('http://')}/a.gguf"):
            with self.subTest(name=name):
                self.expect_failure("expected", name)
        self.assertEqual(self.hub.seen, [])
        self.expect_failure("HF_ENDPOINT", HF_ENDPOINT="http://example.com")

    def test_models_that_are_not_here_say_how_to_get_them(self):
        code, output = self.tandem("bench", "engine", "--model=hf:org/name")
        self.assertNotEqual(code, 0)
        self.assertIn("tandem pull hf:org/name", output)
        self.assertEqual(self.hub.seen, [])
        self.pull()
        code, output = self.tandem("bench", "engine", "--model=hf:org/name")
        self.assertNotIn("tandem pull", output)  # found; it is no model that could run

    def test_without_a_network(self):
        self.hub.stop()
        self.expect_failure("copy the model's files")

    def test_a_folder_that_cannot_be_written(self):
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        # The system's administrator may write it all the same.
        user = {"user": 65534} if os.geteuid() == 0 else {}
        try:
            run = subprocess.run([f"{BUILD}/bin/tandem", "pull", "hf:org/name"], env=self.env, stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, timeout=120, **user)
        except OSError:
            self.skipTest("another user cannot be had, or cannot read the build folder")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("Permission denied", run.stderr)
        self.assertIn(str(self.folder), run.stderr)

    def test_one_pull_at_a_time(self):
        folder = self.folder / "models/hf/org/name/main"
        folder.mkdir(parents=True)
        with open(folder / ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.expect_failure("another `tandem pull`")

    def test_an_unwhole_model_is_not_listed(self):
        self.pull()
        path = pathlib.Path(self.models()[0]["path"])
        (path / "config.json").write_bytes(b"")
        self.assertEqual(self.models(), [])
        self.assertEqual(self.pull()[0], 0)
        self.check()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    known, rest = parser.parse_known_args()
    BUILD = known.build
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
