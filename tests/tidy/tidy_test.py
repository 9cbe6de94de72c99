#!/usr/bin/env python3
"""Goal: every rule of tidy.py finds a violation planted for it, at its line, and leaves clean code alone."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import tidy

CLEAN = "#pragma once\n\nnamespace tandem {\n\nint F();\n\n}  // namespace tandem\n"


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
        with contextlib.redirect_stdout(io.StringIO()):
            findings = tidy.check_tree(self.root)
        (self.root / path).unlink()
        return [finding.line for finding in findings if finding.rule == rule and finding.path == path]

    def test_clean_code_passes(self):
        self.plant("common/kv/a.h", CLEAN)
        self.assertEqual(tidy.check_tree(self.root, out=io.StringIO()), [])

    def test_bounds(self):
        def kept(member, above=""):
            text = f"#pragma once\n\nclass A {{\n  std::map<int, int> F();\n\n{above}  {member}\n}};\n"
            return self.found("router/pipeline/a.h", text, "bound")
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
        self.plant("common/kv/a.h", "#pragma once\nclass A {\n  // Bound: --max.\n  std::deque<int> a_;\n};\n")
        marks = f"{tidy.bounds.BEGIN}\n{{}}{tidy.bounds.END}\n"
        row = "| File | Container | Bound |\n|---|---|---|\n| common/kv/a.h | `a` | --max |\n"
        self.assertEqual(self.found(tidy.bounds.TABLE_FILE, marks.format(row), "bound"), [])
        self.assertEqual(self.found(tidy.bounds.TABLE_FILE, marks.format(""), "bound"), [1])
        self.assertEqual(self.found(tidy.bounds.TABLE_FILE, "no marks\n", "bound"), [1])

    def test_includes(self):
        def edge(path, target):
            return self.found(path, f'#include <map>\n\n#include "{target}"\n', "include")
        for path, target in [
                ("kernels/cpu/a.cc", "common/base/check.h"), ("common/base/a.cc", "common/runtime/clock.h"),
                ("common/kv/a.cc", "common/request/r.h"), ("common/runtime/a.cc", "common/telemetry/log.h"),
                ("common/config/a.cc", "common/model/m.h"), ("common/model/chat_template/a.cc", "common/kv/k.h"),
                ("common/engine/a.cc", "common/transfer/t.h"), ("common/engine/a.cc", "kernels/cpu/gemm.h"),
                ("prefill_node/a.cc", "decode_node/d.h"), ("decode_node/ops/a.cc", "prefill_node/p.h"),
                ("router/policy/a.cc", "common/engine/e.h"), ("router/a.cc", "common/transfer/t.h"),
                ("router/a.cc", "kernels/api/gemm.h"), ("common/rpc/a.cc", "common/kv/k.h"),
                ("sim/a.cc", "tests/testing/t.h"), ("cli/a.cc", "tests/testing/t.h"),
                ("common/kv/a.cc", "router/r.h"), ("common/newcomer/a.cc", "common/kv/k.h")]:
            self.assertEqual(edge(path, target), [3], f"{path} -> {target}")
        for path, target in [
                ("common/kv/a.cc", "common/base/check.h"), ("common/kv/a.cc", "common/kv/b.h"),
                ("common/rpc/a.cc", "common/request/r.h"), ("common/rpc/a.cc", "proto/tandem/v1/x.pb.h"),
                ("common/engine/a.cc", "kernels/api/gemm.h"), ("kernels/cpu/a.cc", "kernels/api/gemm.h"),
                ("router/a.cc", "common/model/m.h"), ("decode_node/a.cc", "common/transfer/t.h"),
                ("sim/a.cc", "router/r.h"), ("cli/a.cc", "sim/s.h"), ("tests/unit/x/a.cc", "cli/c.h"),
                ("common/kv/a.cc", "absl/status/status.h")]:
            self.assertEqual(edge(path, target), [], f"{path} -> {target}")

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
        if tidy.shutil.which("clang-format-14") is None:
            self.skipTest("clang-format-14 is not installed")
        self.assertEqual(self.found("common/kv/a.cc", "int a;\nint   b;\n", "format"), [2])

    def test_a_missing_formatter_is_said(self):
        which, tidy.shutil.which = tidy.shutil.which, lambda name: None
        try:
            self.plant("common/kv/a.cc", "int   b;\n")
            out = io.StringIO()
            self.assertEqual(tidy.check_tree(self.root, out=out), [])
            self.assertIn("SKIPPED: format", out.getvalue())
        finally:
            tidy.shutil.which = which

    def test_files_that_no_target_builds(self):
        self.plant("common/kv/used.cc", '#include "common/kv/used.h"\n')
        self.plant("common/kv/used.h", CLEAN)
        self.plant("common/kv/together.cc", "int b;\n")
        self.plant("build/unity_0.cc", '#include "common/kv/together.cc"\n')
        self.plant("common/kv/orphan.cc", "int a;\n")
        self.plant("common/kv/orphan.h", CLEAN)
        commands = self.root / "compile_commands.json"
        commands.write_text(json.dumps([{"directory": str(self.root / "build"), "file": "../common/kv/used.cc"},
                                        {"directory": str(self.root / "build"), "file": "unity_0.cc"}]))
        findings = tidy.check_tree(self.root, commands)
        self.assertEqual([(f.path, f.rule) for f in findings],
                         [("common/kv/orphan.cc", "not-built"), ("common/kv/orphan.h", "not-built")])
        out = io.StringIO()
        tidy.check_tree(self.root, self.root / "absent.json", out)
        self.assertIn("SKIPPED: not-built", out.getvalue())


if __name__ == "__main__":
    unittest.main()
