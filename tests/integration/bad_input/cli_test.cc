// Goal: what a user mistypes gets exit code 2 and the nearest known name; what fails gets exit code
// 1 and the address it failed at; help and completion work for every program and command.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::vector<std::string>>& Programs() {
  static const std::vector<std::vector<std::string>> programs = {
      {"tandem-router"},      {"tandem-prefill-node"},
      {"tandem-decode-node"}, {"tandem", "up"},
      {"tandem", "generate"}, {"tandem", "chat"},
      {"tandem", "tokenize"}, {"tandem", "status"},
      {"tandem", "bench"},    {"tandem", "bench", "serve"},
  };
  return programs;
}

std::vector<std::string> With(std::vector<std::string> words, const std::string& last) {
  words.push_back(last);
  return words;
}

void ExpectUsageError(const std::vector<std::string>& words, const std::vector<std::string>& named,
                      const std::map<std::string, std::string>& env = {}) {
  const ProgramRun run = RunProgram(words, env);
  EXPECT_EQ(run.exit_code, 2) << run.output;
  for (const std::string& text : named) EXPECT_THAT(run.output, HasSubstr(text));
}

TEST(Cli, HelpAndVersionOfEverythingExitWithZero) {
  for (const auto& program : Programs()) {
    const ProgramRun help = RunProgram(With(program, "--help"));
    EXPECT_EQ(help.exit_code, 0) << program.back();
    EXPECT_THAT(help.output, AllOf(HasSubstr("--help"), HasSubstr("--config"))) << program.back();
    EXPECT_EQ(RunProgram(With(program, "--version")).exit_code, 0) << program.back();
    EXPECT_EQ(RunProgram(With(program, "--print-config")).exit_code, 0) << program.back();
  }
  for (const char* word : {"help", "--help", "-h", "version", "--version"})
    EXPECT_EQ(RunProgram({"tandem", word}).exit_code, 0) << word;
  const ProgramRun bare = RunProgram({"tandem"});
  EXPECT_EQ(bare.exit_code, 2);
  EXPECT_THAT(bare.output, HasSubstr("generate"));
}

TEST(Cli, UnknownCommandsNameTheNearest) {
  ExpectUsageError({"tandem", "generat"}, {"'generat'", "did you mean generate?"});
  ExpectUsageError({"tandem", "sttaus"}, {"'sttaus'", "did you mean status?"});
  ExpectUsageError({"tandem", "completon"}, {"'completon'", "did you mean completion?"});
  ExpectUsageError({"tandem", "versoin"}, {"'versoin'", "did you mean version?"});
  ExpectUsageError({"tandem", "frobnicate"}, {"'frobnicate'", "tandem help"});
  ExpectUsageError({"tandem", "--hepl"}, {"--hepl", "tandem help"});
}

TEST(Cli, UnknownFlagsNameTheNearest) {
  ExpectUsageError({"tandem-router", "--grcp=127.0.0.1:0"}, {"--grcp", "nearest known: --grpc"});
  ExpectUsageError({"tandem-decode-node", "--kv-block=4"}, {"--kv-block", "--kv-blocks"});
  ExpectUsageError({"tandem-prefill-node", "--thread", "2"}, {"--thread", "--threads"});
  ExpectUsageError({"tandem", "up", "--prefil=1"}, {"--prefil", "--prefill"});
  ExpectUsageError({"tandem", "generate", "--temprature=1", "x"},
                   {"--temprature", "--temperature"});
  ExpectUsageError({"tandem", "status", "-x"}, {"-x"});
}

TEST(Cli, BadValuesNameFieldValueAndExpectation) {
  ExpectUsageError({"tandem-router", "--attempts=0"}, {"attempts", "'0'", "from 1 to 100"});
  ExpectUsageError({"tandem-router", "--queue-deadline=soon"}, {"queue-deadline", "'soon'"});
  ExpectUsageError({"tandem-decode-node", "--engine=gpu"}, {"engine", "'gpu'", "cpu, hash"});
  ExpectUsageError({"tandem-decode-node", "--block-tokens=7"}, {"block-tokens", "'7'", "8"});
  ExpectUsageError({"tandem-decode-node", "--engine=hash", "--block-tokens=48"},
                   {"block-tokens", "'48'", "one of 8, 16, 32, 64, 128, 256"});
  ExpectUsageError({"tandem-decode-node", "--engine=hash", "--id=" + std::string(129, 'n')},
                   {"id", "1 to 128 bytes, not 129"});
  ExpectUsageError({"tandem", "up", "--decode=0"}, {"decode", "'0'", "from 1"});
  ExpectUsageError({"tandem", "up", "--kv-memory-fraction=1.5"}, {"kv-memory-fraction", "'1.5'"});
  ExpectUsageError({"tandem", "generate", "--top-p=2", "x"}, {"top-p", "'2'", "from 0 to 1"});
  ExpectUsageError({"tandem", "generate", "--max-tokens"}, {"--max-tokens", "value"});
  ExpectUsageError({"tandem", "generate", "a", "b"}, {"'b'", "at most 1 PROMPT"});
  ExpectUsageError({"tandem", "generate"}, {"PROMPT, --chat and --tokens", "got 0"});
  ExpectUsageError({"tandem", "generate", "--tokens=1,x"}, {"'x' is not a token id"});
  ExpectUsageError({"tandem", "tokenize"}, {"expected TEXT"});
  ExpectUsageError({"tandem", "tokenize", "--decode", "1,two"}, {"'two' is not a token id"});
  ExpectUsageError({"tandem", "completion", "tcsh"}, {"expected bash, zsh or fish"});
}

TEST(Cli, MistypedEnvironmentAndFilesNameTheNearest) {
  ExpectUsageError({"tandem-router"}, {"TANDEM_ROUTER_GRCP", "TANDEM_ROUTER_GRPC"},
                   {{"TANDEM_ROUTER_GRCP", "127.0.0.1:0"}});
  ExpectUsageError({"tandem-decode-node"},
                   {"TANDEM_DECODE_NODE_ENGIN", "TANDEM_DECODE_NODE_ENGINE"},
                   {{"TANDEM_DECODE_NODE_ENGIN", "hash"}});
  ExpectUsageError({"tandem", "up"}, {"TANDEM_UP_PREFIL", "TANDEM_UP_PREFILL"},
                   {{"TANDEM_UP_PREFIL", "2"}});

  const std::string path = ::testing::TempDir() + "/tandem_cli_" + std::to_string(::getpid());
  const auto expect = [&](const std::string& yaml, const std::vector<std::string>& named) {
    std::ofstream(path) << yaml;
    for (const auto& program : Programs()) {
      if (program.back() != "tandem-router" && program.back() != "up") continue;
      ExpectUsageError(With(program, "--config=" + path), named);
    }
  };
  expect("# typo\nmodle: smollm2\n", {"'modle'", path + ":2", "nearest known: model"});
  expect("drain_timout: 3s\n", {"'drain_timout'", path + ":1", "drain-timeout"});
  expect("engine: gpu\n", {"engine", "'gpu'", path + ":1", "cpu"});
  expect("engine: [hash\n", {path, "not YAML"});
  expect("- a list\n", {path + ":1", "expected a map"});
  expect("engine: hash\nengine: cpu\n", {"engine", path + ":2", "given twice"});
  std::remove(path.c_str());
  ExpectUsageError({"tandem-router", "--config=" + path}, {path, "cannot be read"});
}

TEST(Cli, ARouterThatIsNotThereIsNamed) {
  // No process listens on port 1 of the test machine's loopback device.
  const std::string flag = "--router=127.0.0.1:1";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"tandem", "generate", flag, "hello"},
                                             {"tandem", "chat", flag},
                                             {"tandem", "tokenize", flag, "hello"},
                                             {"tandem", "tokenize", flag, "--decode", "1"},
                                             {"tandem", "status", flag}}) {
    const ProgramRun run = RunProgram(words);
    EXPECT_EQ(run.exit_code, 1) << words[1] << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr("tandem " + words[1] + ": "), HasSubstr("127.0.0.1:1")))
        << words[1];
  }
}

TEST(Cli, CompletionScriptsParse) {
  const ProgramRun bash = RunProgram({"tandem", "completion", "bash"});
  EXPECT_EQ(bash.exit_code, 0);
  EXPECT_THAT(bash.output, AllOf(HasSubstr("--temperature"), HasSubstr("complete ")));
  const std::string path =
      ::testing::TempDir() + "/tandem_completion_" + std::to_string(::getpid());
  std::ofstream(path) << bash.output;
  EXPECT_EQ(std::system(("bash -n " + path).c_str()), 0);
  // Completing a command's flag after its name offers that flag.
  const std::string probe =
      "bash -c 'source " + path +
      "; COMP_WORDS=(tandem up --pref); COMP_CWORD=2; $(complete -p tandem | sed \"s/.*-F "
      "\\([^ ]*\\).*/\\1/\"); echo \"${COMPREPLY[@]}\"' > " +
      path + ".out 2>&1";
  EXPECT_EQ(std::system(probe.c_str()), 0);
  std::ifstream out(path + ".out");
  std::string offered;
  std::getline(out, offered);
  EXPECT_THAT(offered, HasSubstr("--prefill"));
  std::remove(path.c_str());
  std::remove((path + ".out").c_str());

  const ProgramRun zsh = RunProgram({"tandem", "completion", "zsh"});
  EXPECT_EQ(zsh.exit_code, 0);
  EXPECT_THAT(zsh.output, HasSubstr("#compdef tandem"));
}

}  // namespace
}  // namespace tandem::testing
