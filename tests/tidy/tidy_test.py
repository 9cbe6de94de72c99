#!/usr/bin/env python3
"""Goal: every rule of tidy.py finds a violation planted for it, at its line, and leaves clean code alone."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import baseline
import bounds
import build
import folders
import names
import tidy

CLEAN = "// Thread safety: none.\n#pragma once\n\nnamespace tandem {\n\nint F();\n\n}  // namespace tandem\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name).resolve()
        self.plant(".clang-format", "BasedOnStyle: Google\n")

    def plant(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, path, text, rule):
        """The lines where `rule` speaks about `text` planted alone at `path`."""
        self.plant(path, text)
        findings = self.findings()
        (self.root / path).unlink()
        return [finding.line for finding in findings if finding.rule == rule and finding.path == path]

    def findings(self, layout=None):
        return tidy.check_tree(self.root, layout=layout)

    def messages(self, rule, layout=None):
        """`path: message` of all that `rule` finds in what was planted."""
        return [f"{finding.path}: {finding.message}" for finding in self.findings(layout) if finding.rule == rule]

    def test_clean_code_passes(self):
        self.plant("common/kv/a.h", CLEAN)
        self.assertEqual(tidy.check_tree(self.root), [])

    def test_bounds(self):
        def kept(member, above=""):
            text = f"#pragma once\n\nclass A {{\n  std::map<int, int> F();\n\n{above}  {member}\n}};\n"
            return self.found("router/core/a.h", text, "bound")
        for member in ["std::map<int, std::vector<int>> a_;", "std::deque<int> a;", "std::vector<int> a_ ABSL_GUARDED_BY(m_);",
                       "absl::flat_hash_set<std::string> a_ = {};", "std::vector<int> a_, b_;  // two"]:
            self.assertEqual(kept(member), [6], member)
            self.assertEqual(kept(member, "  // Bound: --max.\n"), [], member)
            self.assertEqual(kept(member, "  // Bound: --max.\n  int before_;\n"), [], member)
            self.assertEqual(kept(member, "  // Bound: --max.\n  int before_;\n\n"), [9], member)
        for member in ["const std::vector<int> a_;", "const std::map<int, int>& a_;", "std::map<int, int>& a_;",
                       "std::vector<int> a;", "std::map<int, int>::iterator a_;", "int a_;"]:
            self.assertEqual(kept(member), [], member)
        alias = "class A {\n  using All = std::map<int, int>;\n  All all_;\n};\nvoid F() {\n  std::map<int, int> a;\n}\n"
        self.assertEqual(self.found("decode_node/a.cc", alias, "bound"), [3])
        self.assertEqual(self.found("common/model/a.cc", alias, "bound"), [])

    def test_the_table_of_bounds_is_current(self):
        self.plant("common/kv/a.h", "// Thread safety: none.\n#pragma once\nclass A {\n  // Bound: --max.\n  std::deque<int> a_;\n};\n")
        marks = f"{bounds.BEGIN}\n{{}}{bounds.END}\n"
        row = "| File | Container | Bound |\n|---|---|---|\n| common/kv/a.h | `a` | --max |\n"
        self.assertEqual(self.found(bounds.TABLE_FILE, marks.format(row), "bound"), [])
        self.assertEqual(self.found(bounds.TABLE_FILE, marks.format(""), "bound"), [1])
        self.assertEqual(self.found(bounds.TABLE_FILE, "no marks\n", "bound"), [1])

    def test_includes(self):
        def edge(path, target):
            return self.found(path, f'#include <map>\n\n#include "{target}"\n', "include")
        for path, target in [
                ("kernels/cpu/a.cc", "common/base/check.h"), ("common/base/a.cc", "common/runtime/clock.h"),
                ("common/kv/a.cc", "common/request/r.h"), ("common/runtime/a.cc", "common/telemetry/log.h"),
                ("common/config/a.cc", "common/model/m.h"), ("common/model/chat_template/a.cc", "common/kv/k.h"),
                ("common/engine/a.cc", "common/transfer/t.h"), ("common/engine/a.cc", "kernels/cpu/gemm.h"),
                ("prefill_node/a.cc", "decode_node/d.h"), ("decode_node/ops/a.cc", "prefill_node/p.h"),
                ("router/core/a.cc", "common/engine/e.h"), ("router/core/a.cc", "common/transfer/t.h"),
                ("router/core/a.cc", "kernels/api/gemm.h"), ("common/rpc/a.cc", "common/kv/k.h"),
                ("sim/a.cc", "tests/testing/t.h"), ("cli/a.cc", "tests/testing/t.h"), ("sim/a.cc", "cli/c.h"),
                ("common/kv/a.cc", "router/r.h"), ("common/newcomer/a.cc", "common/kv/k.h"),
                ("common/kv/a.cc", "tandem/v1/x.pb.h"),
                # Within a unit: upwards, and to a room of the same row.
                ("common/engine/a.cc", "common/engine/cpu/c.h"), ("common/engine/cpu/a.cc", "common/engine/hash/h.h"),
                ("kernels/api/a.cc", "kernels/cpu/c.h"), ("kernels/ref/a.cc", "kernels/cpu/c.h"),
                ("router/fleet/a.cc", "router/core/c.h"), ("router/front_end/http/a.cc", "router/front_end/grpc/g.h"),
                ("router/front_end/a.cc", "router/front_end/http/h.h"), ("sim/world/a.cc", "sim/checkers/c.h"),
                ("cli/client/a.cc", "cli/batch/b.h"), ("router/newcomer/a.cc", "router/core/c.h")]:
            self.assertEqual(edge(path, target), [3], f"{path} -> {target}")
        for path, target in [
                ("common/kv/a.cc", "common/base/check.h"), ("common/kv/a.cc", "common/kv/b.h"),
                ("common/rpc/a.cc", "common/request/r.h"), ("common/rpc/a.cc", "tandem/v1/x.pb.h"),
                ("common/engine/a.cc", "kernels/api/gemm.h"), ("kernels/cpu/a.cc", "kernels/api/gemm.h"),
                ("router/core/a.cc", "common/model/tokenizer/m.h"), ("decode_node/a.cc", "common/transfer/t.h"),
                ("sim/a.cc", "router/core/r.h"), ("cli/commands/a.cc", "sim/s.h"), ("tests/unit/x/a.cc", "cli/c.h"),
                ("common/kv/a.cc", "absl/status/status.h"), ("common/engine/cpu/a.cc", "common/engine/e.h"),
                ("router/front_end/http/a.cc", "router/core/c.h"), ("sim/checkers/a.cc", "sim/world/w.h")]:
            self.assertEqual(edge(path, target), [], f"{path} -> {target}")

    def test_the_tables_of_folders_are_true(self):
        self.plant("router/newcomer/a.cc", "int a;\n")
        self.plant("common/newcomer/a.cc", "int a;\n")
        self.plant("common/kv/a.cc", "int a;\n")
        self.assertEqual(self.messages("folder"), [
            f"common/newcomer/a.cc: common/newcomer has no place: give it one in {folders.TABLES}",
            f"router/newcomer/a.cc: router/newcomer has no place: give it one in {folders.TABLES}"])
        layout = folders.Layout({"common/kv": ["common/gone"], "router": []}, {"router": ["newcomer", "removed"]})
        self.plant(folders.TABLES, "")
        said = "\n".join(self.messages("folder", layout))
        for gone in ["common/gone", "router/removed", "kernels/dispatch/dispatch.cc"]:
            self.assertIn(f"tests/tidy speaks of {gone}, which does not exist", said)
        for there in ["common/kv,", "router/newcomer"]:
            self.assertNotIn(there, said)

    def test_include_cycles(self):
        def graph(**edges):
            texts = {f"common/{own}/a.h": "".join(f'#include "common/{target}/a.h"\n' for target in targets.split())
                     for own, targets in edges.items()}
            return [(f.path, f.message) for f in folders.check_cycles(texts)]
        self.assertEqual(graph(a="b c", b="c", c=""), [])
        both = "common/a and common/b include each other: common/a/a.h includes common/b/a.h; " \
               "common/b/a.h includes common/a/a.h"
        self.assertEqual(graph(a="b", b="a", c="a"), [("common/a/a.h", both)])
        self.assertEqual([message.partition(" include each")[0] for _, message in graph(a="b", b="c", c="a")],
                         ["common/a and common/b and common/c"])
        tests = {"tests/testing/a.h": '#include "cli/client/a.h"\n', "cli/client/a.h": '#include "tests/testing/a.h"\n'}
        self.assertEqual(len(list(folders.check_cycles(tests))), 1)
        # A folder and the one it lies in.
        nested = {"sim/a.h": '#include "sim/world/a.h"\n', "sim/world/a.h": '\n#include "sim/a.h"\n'}
        self.assertEqual([f.path for f in folders.check_cycles(nested)], ["sim/a.h"])

    def test_retired_words(self):
        self.plant(names.GLOSSARY, "## Retired words\n\n| Retired | Say |\n|---|---|\n| `Door`, `hand-off` | `Gate` |\n"
                                   "\n## Terms\n\n| `Fine` | x |\n")
        for path, text in [("common/kv/a.cc", "int a;\nint Door;\n"), ("docs/A.md", "\nthe hand-off.\n"),
                           ("proto/a.proto", "\n// `Door`\n"), ("scripts/a.sh", "\necho Door\n"),
                           ("deploy/a.yaml", "\na: Door\n"), ("CMakeLists.txt", "\n# Door\n")]:
            self.assertEqual(self.found(path, text, "retired-word"), [2], path)
        for name in ["kDoor", "kDoorUs", "DoorKeeper", "KvDoor", "IODoor", "Door_", "old_Door"]:
            self.assertEqual(self.found("common/kv/a.cc", f"int a;\nint {name};\n", "retired-word"), [2], name)
        for path, text in [("common/kv/a.cc", "int Doors, door, kDoors, kdoor, inDoorway, Gate, Fine;\n"),
                           ("docs/adr/0001.md", "Door\n"), ("docs/measurements/a.md", "Door\n"),
                           ("tests/fuzz/corpus/a", "Door\n"), ("tests/a.bin", "\0 Door\n")]:
            self.assertEqual(self.found(path, text, "retired-word"), [], path)
        self.assertEqual(self.messages("retired-word"), [])

    def test_comments_name_who_acts(self):
        for words in ["whoever pushes", "Whoever pushes", "nobody reads it", "somebody reads it", "who has the lock"]:
            self.assertEqual(self.found("common/kv/a.h", f"int a;\nint b;  // {words}\n", "actor"), [2], words)
            self.assertEqual(self.found("common/kv/a.cc", f"int a;\nint b;  // {words}\n", "actor"), [2], words)
        self.assertEqual(self.found("common/kv/a.h", "int nobody;\n// The pushing thread.\n", "actor"), [])
        self.assertEqual(self.found("tests/testing/a.h", "// nobody\n", "actor"), [])

    def test_comments_name_files_that_exist(self):
        self.plant("common/kv/b.h", CLEAN)
        for comment in ["// As common/kv/b.h says, common/kv/.", "// x/common/kv/gone.h", "int a = 1;  // common/kv/b.h."]:
            self.assertEqual(self.found("common/kv/a.cc", comment + "\n", "stale-path"), [], comment)
        for path in ["common/kv/a.cc", "proto/a.proto"]:
            self.assertEqual(self.found(path, "\n// See common/kv/gone.h.\n", "stale-path"), [2], path)
        self.assertEqual(self.found("tests/testing/a.h", "// common/kv/gone.h\n", "stale-path"), [])

    def test_headers_promise(self):
        for text in ["// A queue.\n// Thread safety: any thread.\n#pragma once\n", "// Threads: one block.\n",
                     "// A value. Thread\n// safety: a value.\n"]:
            self.assertEqual(self.found("common/kv/a.h", text, "thread-contract"), [], text)
            self.assertEqual(self.found("kernels/cuda/a.cuh", text, "thread-contract"), [], text)
        for text in ["#pragma once\n// Thread safety: too late.\n", "// A queue that is thread-safe.\n",
                     "// Thread safety:\n", ""]:
            self.assertEqual(self.found("common/kv/a.h", text, "thread-contract"), [1], text)
            self.assertEqual(self.found("tests/testing/a.h", text, "thread-contract"), [], text)
            self.assertEqual(self.found("common/kv/a.cc", text, "thread-contract"), [], text)

    def test_sources_have_headers(self):
        self.plant("common/kv/a.h", CLEAN)
        self.plant("kernels/cuda/b.cuh", CLEAN)
        for path, text in [("common/kv/a.cc", ""), ("kernels/cuda/b.cu", ""), ("router/main.cc", ""), ("cli/tandem_main.cc", ""),
                           ("tests/unit/kv/c_test.cc", ""),
                           ("common/kv/x/c.cc", "// Implements eviction of a.h.\n"), ("common/x/c.cc", "// Evicts (kv/a.h).\n"),
                           ("common/kv/c.cc", "// Implements eviction of BlockPool\n// (common/kv/a.h). More.\n")]:
            self.assertEqual(self.found(path, text, "no-header"), [], path)
        for text in ["", "// Implements eviction (gone.h).\n", "// Implements eviction.\n",
                     "// Implements eviction (common/kv/gone.h).\n", "\n// Implements eviction (common/kv/a.h).\n",
                     "// Implements common/kv/a.h and common/kv/gone.h.\n"]:
            self.assertEqual(self.found("common/kv/c.cc", text, "no-header"), [1], text)
            self.assertEqual(self.found("kernels/cuda/c.cu", text, "no-header"), [1], text)

    def test_documents(self):
        wide = "word " * 21 + "\n"
        for path in ["docs/A.md", "docs/adr/0001.md", "README.md"]:
            self.assertEqual(self.found(path, "\n" + wide, "document-line"), [2], path)
        for path in ["docs/measurements/a.md", "tests/golden/a.md"]:
            self.assertEqual(self.found(path, wide, "document-line"), [], path)
        for text in ["x" * 100 + "\n", "| " + wide, "```sh\n" + wide + "```\n", f"[a](b/{'x' * 200}.md)\n",
                     f"see https://a.b/{'x' * 200}\n"]:
            self.assertEqual(self.found("docs/A.md", text, "document-line"), [], text)
        self.assertEqual(self.found("docs/A.md", "```sh\n```\n" + wide, "document-line"), [3])
        self.assertEqual(self.found("docs/PERFORMANCE.md", "a\n" * 150, "document-size"), [])
        self.assertEqual(self.found("docs/PERFORMANCE.md", "a\n" * 151, "document-size"), [151])

    def test_recipes(self):
        self.plant("router/a.h", CLEAN.replace("int F", "int KnownName"))
        self.plant("router/a.cc", "int kTable[1];\n")
        def found(row):
            return self.found("docs/EXTENDING.md", f"| File | Change |\n|---|---|\n{row}\n", "recipe")
        self.assertEqual(found("| `router/a.h`, `a.cc` | `KnownName`, a row of `kTable`; see `docs/A.md` |"), [])
        self.assertEqual(found("| `router/a.h` | a row of `kTable` |"), [3])
        self.assertEqual(found("| `router/a.h`, `a.cc` | `GoneName` |"), [3])
        for row in ["| `router/` + your header | a `NewName` |", "| `router/a.h` | the flag, `tandem up --x` |"]:
            self.assertEqual(found(row), [])

    def test_samples_of_recipes(self):
        self.plant("router/a.cc", 'const A::Row A::kRows[] = {\n    {"/a,b", F(1, 2), {3, 4}},\n    {"/c", 5, {}},\n};\n')
        def found(sample, table="kRows"):
            return self.found("docs/EXTENDING.md", f"## B\n\n| File | Change |\n|---|---|\n| `router/a.cc` | `{table}` |\n"
                              f"\n```cpp\n{sample}\n```\n", "recipe")
        for sample in ['    {"/d, e", G(6,\n    7), {8}},', '{"/d", 6, {}}', "int F() {\n  return 1;\n}", "int a = 1;"]:
            self.assertEqual(found(sample), [], sample)
        for sample in ['    {"/d", 6},', '{"/d", 6, {}, 7}']:
            self.assertEqual(found(sample), [8], sample)

    def test_the_baseline_only_shrinks(self):
        self.plant("common/kv/old.h", "#pragma once\n")
        self.plant(baseline.FILE, "# why\nthread-contract common/kv/old.h\nthread-contract common/kv/fixed.h\n")
        self.plant("common/kv/fixed.h", CLEAN)
        fixed = "common/kv/fixed.h keeps the rule thread-contract: remove this line"
        self.assertEqual([str(f) for f in self.findings()], [f"{baseline.FILE}:3: baseline: {fixed}"])
        baseline.shrink(self.root, tidy.check_all(self.root, None, folders.Layout())[0])
        self.assertEqual((self.root / baseline.FILE).read_text(), "# why\nthread-contract common/kv/old.h\n")
        self.assertEqual(self.findings(), [])
        self.plant("common/kv/new.h", "#pragma once\n")
        self.assertEqual([(f.path, f.rule) for f in self.findings()], [("common/kv/new.h", "thread-contract")])

    def test_file_size(self):
        self.assertEqual(self.found("common/kv/a.cc", "int a;\n" * 501, "file-size"), [501])
        self.assertEqual(self.found("common/kv/a.cc", "int a;\n" * 500, "file-size"), [])

    def test_function_size(self):
        def body(lines):
            return "  a();\n" * lines
        template = "namespace x {{\nstruct S {{\n  int a = 1;\n}};\n\n{head} {{\n{body}}}\n}}  // namespace x\n"
        for head in ["int F(int a)", "int F(int a,\n      int b) const", "S::S() : a_(1), b_{2}"]:
            extra = head.count("\n")
            # A brace in the member initialisers ends the head early, not the function.
            long = template.format(head=head, body=body(59))
            short = template.format(head=head, body=body(58 - extra))
            self.assertEqual(self.found("common/kv/a.cc", long, "function-size"), [6], head)
            self.assertEqual(self.found("common/kv/a.cc", short, "function-size"), [], head)
        method = "class C {\n public:\n  void M() {\n" + body(70) + "  }\n};\n"
        self.assertEqual(self.found("common/kv/a.h", method, "function-size"), [3])
        tricky = 'void F() {\n  G("}}}", \'}\', R"(})");  // }\n' + body(70) + "}\n"
        self.assertEqual(self.found("common/kv/a.cc", tricky, "function-size"), [1])
        many = "".join(f"void F{i}() {{\n{body(40)}}}\n" for i in range(5))
        self.assertEqual(self.found("common/kv/a.cc", many, "function-size"), [])

    def test_banned_calls(self):
        for line in ['auto x = getenv("A");', 'auto x = std::getenv("A");', "int x = std::rand();", "int x = rand();",
                     "std::random_device d;", "std::this_thread::sleep_for(a);", "sleep(1);", "usleep(5);",
                     "absl::SleepFor(a);", "std::thread t(f);", "std::jthread t;", "using namespace std;",
                     "auto* p = new Foo();", "int* p = new int[3];", "delete p;", "delete[] p;",
                     "auto t = absl::Now();", "auto t = std::chrono::steady_clock::now();", "time_t t = time(nullptr);"]:
            self.assertEqual(self.found("common/kv/a.cc", f"int a;\n{line}\n", "banned-call"), [2], line)
        for line in ["std::unique_ptr<A> a(new A(1));", "return std::unique_ptr<A>(new A);", "A(const A&) = delete;",
                     "static A* const a = new A;", "// new thinking: getenv() and delete it", 'Log("new file; delete it");',
                     "int renew = 1;", "waiter.sleep(a);", "std::thread::id id;", "clock.Now();", "a->time();"]:
            self.assertEqual(self.found("common/kv/a.cc", f"int a;\n{line}\n", "banned-call"), [], line)
        self.assertEqual(self.found("common/config/a.cc", 'auto x = getenv("A");\n', "banned-call"), [])
        for path, lines in [("cli/bench_serve/a.cc", [1]), ("cli/client/a.cc", [1]), ("cli/client/client.cc", [])]:
            self.assertEqual(self.found(path, "auto t = absl::Now();\n", "banned-call"), lines, path)
        self.assertEqual(self.found("common/runtime/a.cc", "std::thread t(f);\nsleep(1);\n", "banned-call"), [])
        self.assertEqual(self.found("tests/unit/x/a.cc", "std::thread t(f);\nsleep(1);\n", "banned-call"), [2])

    def test_backend_ifdefs(self):
        for line in ["#ifdef TANDEM_CUDA", "#if defined(TANDEM_HAVE_NCCL)", "# ifdef __CUDACC__", "#if __AVX512F__"]:
            self.assertEqual(self.found("common/kv/a.cc", f"\n{line}\n#endif\n", "ifdef"), [2], line)
        self.assertEqual(self.found("kernels/dispatch/dispatch.cc", "#ifdef TANDEM_CUDA\n#endif\n", "ifdef"), [])
        self.assertEqual(self.found("kernels/cpu/a.cc", "#ifdef __AVX512F__\n#endif\n", "ifdef"), [])
        self.assertEqual(self.found("kernels/cpu/a.cc", "#ifdef TANDEM_CUDA\n#endif\n", "ifdef"), [1])

    def test_guards(self):
        self.assertEqual(self.found("common/kv/a.h", "int F();\n", "guard"), [1])
        self.assertEqual(self.found("common/kv/a.h", "// #pragma once\nint F();\n", "guard"), [1])
        self.assertEqual(self.found("common/kv/a.h", "#ifndef A_H_\n#define A_H_\n#endif\n", "guard"), [])
        self.assertEqual(self.found("common/kv/a.cc", "int F();\n", "guard"), [])

    def test_unfinished_work(self):
        for word in ["TO" "DO", "FIX" "ME", "XX" "X"]:
            self.assertEqual(self.found("common/kv/a.cc", f"\n// {word}: later\n", "unfinished"), [2], word)

    def test_one_name_for_one_type(self):
        record = "namespace a::b {\n\nstruct Record : Base {\n  int x;\n};\n\n}  // namespace a::b\n"
        self.plant("common/kv/first.cc", record)
        self.assertEqual(self.found("common/kv/second.cc", record, "one-name"), [3])
        for other in [record.replace("a::b", "a::c"), record.replace("Record", "Records"),
                      record.replace("struct Record : Base", "struct Record;\nstruct Outer::Record"),
                      "namespace a::b {\nnamespace {\nenum class Record { kA };\n}\n}\n",
                      "namespace a::b {\nclass Outer {\n  struct Record {};\n};\n}\n"]:
            self.assertEqual(self.found("common/kv/second.cc", other, "one-name"), [], other)

    def test_format(self):
        if build.shutil.which("clang-format-14") is None:
            self.skipTest("clang-format-14 is not installed")
        self.assertEqual(self.found("common/kv/a.cc", "int a;\nint   b;\n", "format"), [2])

    def run_script(self, *flags, **environment):
        """The script's exit status and output where PATH has git and no clang-format-14."""
        tools = self.root / "tools"
        tools.mkdir(exist_ok=True)
        if not (tools / "git").exists():
            (tools / "git").symlink_to(build.shutil.which("git"))
        ran = subprocess.run([sys.executable, tidy.__file__, self.root, *flags], text=True, capture_output=True,
                             env={"PATH": str(tools), **environment})
        return ran.returncode, ran.stdout

    def test_a_rule_that_was_not_checked_is_no_success(self):
        self.plant("tests/unit/kv/a.cc", "int   b;\n")
        for environment, status in [({}, 77), ({"CI": "true"}, 1), ({"CI": "false"}, 77)]:
            code, output = self.run_script(**environment)
            self.assertEqual(code, status, output)
            self.assertIn("SKIPPED: format: clang-format-14 is not installed", output)
        code, output = self.run_script("--compile-commands", str(self.root / "absent.json"))
        self.assertEqual(code, 77, output)
        self.assertIn("SKIPPED: not-built", output)
        self.plant("tests/unit/kv/a.cc", "using namespace std;\n")
        self.assertEqual(self.run_script()[0], 1)

    def test_files_that_no_target_builds(self):
        self.plant("common/kv/used.cc", '#include "common/kv/used.h"\n')
        self.plant("common/kv/used.h", CLEAN)
        self.plant("common/kv/together.cc", '#include "common/kv/together.h"\n')
        self.plant("common/kv/together.h", CLEAN)
        self.plant("build/unity_0.cc", '#include "common/kv/together.cc"\n')
        self.plant("common/kv/orphan.cc", "int a;\n")
        self.plant("common/kv/orphan.h", CLEAN)
        commands = self.root / "compile_commands.json"
        commands.write_text(json.dumps([{"directory": str(self.root / "build"), "file": "../common/kv/used.cc"},
                                        {"directory": str(self.root / "build"), "file": "unity_0.cc"}]))
        findings = [f for f in tidy.check_tree(self.root, commands) if f.rule == "not-built"]
        self.assertEqual([(f.path, f.rule) for f in findings],
                         [("common/kv/orphan.cc", "not-built"), ("common/kv/orphan.h", "not-built")])


if __name__ == "__main__":
    unittest.main()
