// Goal: `tandem generate --batch` answers every line once as the same request alone would be
// answered, names broken lines and goes on, and a run that was killed goes on where it was.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "common/runtime/thread.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

class BatchFiles : public ::testing::Test {
 protected:
  BatchFiles()
      : folder_(::testing::TempDir() + "/batch_" + std::to_string(::getpid())),
        in_(folder_ + ".in.jsonl"),
        out_(folder_ + ".out.jsonl") {
    std::remove(out_.c_str());
  }
  ~BatchFiles() override {
    std::remove(in_.c_str());
    std::remove(out_.c_str());
  }
  void Start(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--engine=hash", "--prefill=1", "--decode=1",
                                      "--kv-blocks=2048"};
    flags.insert(flags.end(), more.begin(), more.end());
    ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(flags));
  }
  std::vector<std::string> Words(const std::string& concurrency = "4") const {
    return {"generate",         "--router=" + cluster_->address(), "--batch=" + in_,
            "--output=" + out_, "--concurrency=" + concurrency,    "--temperature=0",
            "--max-tokens=6"};
  }
  ProgramRun Run() const {
    std::vector<std::string> words = Words();
    words.insert(words.begin(), "tandem");
    return RunProgram(words);
  }
  // By custom_id; fails the test when one is there twice.
  std::map<std::string, nlohmann::json> Output() const {
    std::map<std::string, nlohmann::json> lines;
    for (const absl::string_view line : absl::StrSplit(ReadAll(out_), '\n', absl::SkipEmpty())) {
      nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
      EXPECT_TRUE(json.is_object()) << line;
      const std::string id = json.value("custom_id", "");
      EXPECT_TRUE(lines.emplace(id, std::move(json)).second) << id << " is there twice";
    }
    return lines;
  }

  const std::string folder_, in_, out_;
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(BatchFiles, EveryLineIsAnsweredAndBrokenOnesAreNamed) {
  Start({});
  std::ofstream(in_)
      << "{\"custom_id\": \"one\", \"prompt\": \"abc\"}\n"
      << "{\"custom_id\": \"broken\", \"prompt\": 5}\n\n"
      << "not JSON at all\n"
      << "{\"custom_id\": \"long\", \"body\": {\"prompt\": \"abc\", \"max_tokens\": 9}}\n"
      << "{\"custom_id\": \"one\", \"prompt\": \"again\"}\n"
      << "{\"custom_id\": \"model\", \"prompt\": \"abc\", \"model\": \"nobody\"}\n"
      << "{\"prompt\": [97, 98, 99]}";
  const ProgramRun run = Run();
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("in.jsonl:2: prompt: "), HasSubstr("in.jsonl:4: "),
                    HasSubstr("in.jsonl:6: custom_id: "), HasSubstr("in.jsonl:7: model"),
                    HasSubstr("7 lines: 3 answered, 0 answered before, 4 failed")));
  std::string all = ReadAll(out_);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 7);
  v1::GenerateRequest alone;
  alone.set_text("abc");
  alone.mutable_sampling()->set_temperature(0);
  alone.mutable_stop()->set_max_tokens(9);
  alone.set_return_token_ids(true);
  const Answer expected = cluster_->Generate(alone);
  bool seen = false;
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end());
    if (json["custom_id"] != "long") continue;
    seen = true;
    EXPECT_EQ(json["text"], expected.text);
    EXPECT_EQ(json["tokens"], nlohmann::json(expected.tokens));
    EXPECT_EQ(json["usage"]["completion_tokens"], 9);
    EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  }
  EXPECT_TRUE(seen);
}

TEST_F(BatchFiles, ARestartKeepsAnswersAndRepairsTheRest) {
  Start({});
  {
    std::ofstream in(in_);
    for (int i = 0; i < 20; ++i) {
      in << "{\"custom_id\": \"r" << i << "\", \"prompt\": \"prompt " << i << "\"}\n";
    }
  }
  EXPECT_EQ(Run().exit_code, 0);
  const auto first = Output();
  ASSERT_EQ(first.size(), 20u);
  // As if killed in the middle of a write, after an error.
  std::vector<std::string> lines = absl::StrSplit(ReadAll(out_), '\n', absl::SkipEmpty());
  std::ofstream(out_, std::ios::trunc)
      << lines[0] << "\n"
      << "{\"custom_id\":\"r19\",\"line\":20,\"error\":{\"code\":\"UNAVAILABLE\"}}\n"
      << lines[1] << "\n"
      << lines[2].substr(0, lines[2].size() / 2);
  const ProgramRun again = Run();
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("20 lines: 18 answered, 2 answered before, 0 failed"));
  const auto second = Output();
  ASSERT_EQ(second.size(), 20u);
  for (const auto& [id, json] : first) {
    EXPECT_EQ(second.at(id)["text"], json["text"]) << id;
    EXPECT_EQ(second.at(id)["tokens"], json["tokens"]) << id;
  }
  EXPECT_THAT(Run().output, HasSubstr("20 lines: 0 answered, 20 answered before, 0 failed"));
}

// An answer passes for no other request than its own, though that has its name.
TEST_F(BatchFiles, AChangedLineOrFlagIsNamedAndNotTakenAsAnswered) {
  Start({});
  std::ofstream(in_) << "{\"prompt\": \"first\"}\n{\"prompt\": \"second\"}\n";
  ASSERT_EQ(Run().exit_code, 0);
  const std::string answers = ReadAll(out_);
  const auto refused = [&](const ProgramRun& run, const char* where) {
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(where), HasSubstr("to another request")));
    EXPECT_EQ(ReadAll(out_), answers);
  };
  std::vector<std::string> words = Words();
  words.insert(words.begin(), "tandem");
  words.back() = "--max-tokens=5";
  refused(RunProgram(words), "in.jsonl:1: \"line-1\"");
  std::ofstream(in_) << "{\"prompt\": \"first\"}\n{\"prompt\": \"changed\"}\n";
  refused(Run(), "in.jsonl:2: \"line-2\"");
  std::ofstream(in_) << "{\"prompt\": \"first\"}\n{\"prompt\": 5}\n";
  refused(Run(), "in.jsonl:2: \"line-2\"");
  // What decides no answer may change.
  std::ofstream(in_) << "{\"prompt\": \"first\", \"user\": \"u\"}\n{\"prompt\": \"second\"}\n";
  EXPECT_THAT(Run().output, HasSubstr("2 lines: 0 answered, 2 answered before, 0 failed"));
}

TEST_F(BatchFiles, OutputsThatNoBatchWroteStayAsTheyAre) {
  Start({});
  std::ofstream(in_) << "{\"prompt\": \"a\"}\n";
  const auto run = [this](const std::string& in, const std::string& out) {
    return RunProgram({"tandem", "generate", "--router=" + cluster_->address(), "--batch=" + in,
                       "--output=" + out, "--temperature=0", "--max-tokens=6"});
  };
  std::ofstream(out_) << "a line of notes";
  const ProgramRun notes = run(in_, out_);
  EXPECT_EQ(notes.exit_code, 1);
  EXPECT_THAT(notes.output, HasSubstr("line 1 is not an answer of a batch"));
  EXPECT_EQ(ReadAll(out_), "a line of notes");
  const ProgramRun full = run(in_, "/dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.output, HasSubstr("--output /dev/full: cannot be written"));
  // A pipe that someone reads gets the answers.
  const std::string pipe = folder_ + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string piped;
  {
    const Thread reader("reader", [&] { piped = ReadAll(pipe); });
    EXPECT_EQ(run(in_, pipe).exit_code, 0);
  }
  EXPECT_THAT(piped, HasSubstr("\"custom_id\":\"line-1\""));
  std::remove(pipe.c_str());
  std::remove(out_.c_str());
  const ProgramRun folder = run(::testing::TempDir(), out_);
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_THAT(folder.output, HasSubstr("cannot be read"));
  EXPECT_FALSE(std::ifstream(out_)) << "nothing was made";
  // A repair goes through a link to the file behind it.
  std::ofstream(out_) << "{\"custom_id\":\"li";
  const std::string link = folder_ + ".link";
  ASSERT_EQ(::symlink(out_.c_str(), link.c_str()), 0);
  EXPECT_EQ(run(in_, link).exit_code, 0);
  EXPECT_EQ(Output().size(), 1u);
  std::remove(link.c_str());
}

TEST_F(BatchFiles, AKilledRunGoesOn) {
  Start({"--hash-step-time=2ms"});
  constexpr int kLines = 60;
  {
    std::ofstream in(in_);
    for (int i = 0; i < kLines; ++i) in << "{\"prompt\": \"prompt number " << i << "\"}\n";
  }
  {
    ASSERT_OK_AND_ASSIGN(
        const auto child,
        cli::ChildProcess::Start("batch", absl::StrCat(TANDEM_BINARY_DIR, "/bin/tandem"),
                                 Words("2"), [](const std::string&) {}));
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (absl::StrContains(ReadAll(out_), "\n") == false && absl::Now() < give_up) {
    }
    child->Signal(SIGKILL);
    while (!child->Ended().has_value() && absl::Now() < give_up) {
    }
  }
  const auto before = ReadAll(out_);
  EXPECT_EQ(Run().exit_code, 0);
  const auto output = Output();
  EXPECT_EQ(output.size(), static_cast<size_t>(kLines));
  for (const auto& [id, json] : output) EXPECT_TRUE(json.contains("text")) << id;
  const std::string first_line = before.substr(0, before.find('\n') + 1);
  EXPECT_THAT(ReadAll(out_), HasSubstr(first_line));
}

TEST_F(BatchFiles, DashesAreStandardInputAndOutput) {
  Start({});
  std::ofstream(in_) << R"({"custom_id": "one", "prompt": "a"})"
                     << "\n"
                     << R"({"custom_id": "two", "prompt": "b"})"
                     << "\n";
  ASSERT_EQ(Run().exit_code, 0);
  const std::map<std::string, nlohmann::json> expected = Output();
  ASSERT_EQ(expected.size(), 2u);
  const ProgramRun piped =
      RunProgram({"tandem", "generate", "--router=" + cluster_->address(), "--batch=-",
                  "--output=-", "--temperature=0", "--max-tokens=6"},
                 {}, in_);
  EXPECT_EQ(piped.exit_code, 0) << piped.output;
  std::map<std::string, nlohmann::json> got;
  for (const absl::string_view line : absl::StrSplit(piped.output, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (json.is_object()) got[json["custom_id"]] = json;
  }
  EXPECT_EQ(got, expected);
  EXPECT_THAT(piped.output, HasSubstr("2 lines: 2 answered, 0 answered before, 0 failed"));
}

TEST_F(BatchFiles, WrongUseIsSaid) {
  const auto refused = [](std::vector<std::string> words, int code, const std::string& said) {
    words.insert(words.begin(), {"tandem", "generate"});
    const ProgramRun run = RunProgram(words);
    EXPECT_EQ(run.exit_code, code) << said;
    EXPECT_THAT(run.output, HasSubstr(said));
  };
  std::ofstream(in_) << "{\"prompt\": \"a\"}\n";
  refused({"--batch=" + in_}, 2, "--batch and --output go together");
  refused({"--batch=" + in_, "--output=" + out_, "prompt"}, 2, "the file has the prompts");
  refused({"--batch=" + in_, "--output=" + out_, "--n=2"}, 2, "--n");
  refused({"--batch=" + in_, "--output=" + out_, R"(--params={"n": 2})"}, 2, "--n");
  refused({"--batch=" + in_, "--output=" + out_, R"(--params={"best_of": 2})"}, 2, "--n");
  refused({"--batch=/no/such", "--output=" + out_}, 1, "--batch /no/such: cannot be read");
  refused({"--batch=" + in_, "--output=" + in_}, 1, "another file than --batch");
  refused({"--batch=" + in_, "--output=" + out_, "--router=127.0.0.1:1"}, 1, "127.0.0.1:1");
  EXPECT_EQ(ReadAll(out_), "");
}

}  // namespace
}  // namespace tandem::testing
