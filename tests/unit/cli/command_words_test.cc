// Goal: words that a user gets wrong, or asks about, are answered: `tandem help COMMAND` explains
// that command, and an error names what was wrong, what was expected, and where it was given.
#include <gmock/gmock.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command_line/commands.h"
#include "common/model/model_path.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome Tandem(const std::vector<std::string>& words, const Environment& env = {}) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = TandemMain(words, env);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CommandWords, HelpExplainsTheCommandThatIsNamed) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"generate"}, {"bench"}, {"bench", "serve"}, {"completion"}, {"version"}}) {
    std::vector<std::string> words = {"help"};
    std::string name = "tandem";
    for (const std::string& word : command) {
      words.push_back(word);
      absl::StrAppend(&name, " ", word);
    }
    const Outcome help = Tandem(words);
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_THAT(help.out, StartsWith(absl::StrCat("Usage: ", name)));
    words.erase(words.begin());
    words.push_back("--help");
    const Outcome flag = Tandem(words);
    EXPECT_EQ(flag.code, 0) << name;
    EXPECT_EQ(flag.out, help.out) << name;
  }
  EXPECT_EQ(Tandem({"help", "help"}).out, Tandem({"help"}).out);
}

TEST(CommandWords, HelpOfAnUnknownCommandIsWrongUsage) {
  const Outcome help = Tandem({"help", "generat"});
  EXPECT_EQ(help.code, 2);
  EXPECT_THAT(help.out, IsEmpty());
  EXPECT_THAT(help.err, HasSubstr("unknown command 'generat'; did you mean generate?"));
}

TEST(CommandWords, VersionTakesNoArguments) {
  const Outcome version = Tandem({"version", "foo"});
  EXPECT_EQ(version.code, 2);
  EXPECT_EQ(version.err, "tandem version: 'foo': expected no arguments\n");
  EXPECT_EQ(Tandem({"version"}).code, 0);
}

TEST(CommandWords, SimNamesEachWordThatMayFollow) {
  const Outcome sim = Tandem({"sim", "foo"});
  EXPECT_EQ(sim.code, 2);
  EXPECT_THAT(sim.err, HasSubstr("'foo', expected shrink, trace or nothing"));
  EXPECT_THAT(Tandem({"sim", "--help"}).out, HasSubstr("[shrink | trace FILE]"));
}

TEST(CommandWords, CertificatesOfNoFolderAreNoTable) {
  const Outcome certs = Tandem({"certs", "list", "--folder=/nowhere/certs"});
  EXPECT_EQ(certs.code, 1);
  EXPECT_THAT(certs.out, IsEmpty());
  EXPECT_THAT(certs.err, HasSubstr("/nowhere/certs/ca.crt: cannot be read"));
}

TEST(CommandWords, KnownModelsAreFetchedByTheScriptWhereverTheyAreNamed) {
  const Environment env = {
      {"TANDEM_MODELS", absl::StrCat(::testing::TempDir(), "no_models_", ::getpid())}};
  const std::string how = "fetch it with scripts/fetch_model.py smollm2 of Tandem's source tree";
  const Outcome pull = Tandem({"pull", "smollm2"}, env);
  EXPECT_EQ(pull.code, 2);
  EXPECT_THAT(pull.err, HasSubstr(how));
  EXPECT_THAT(model::ResolveModelPath("smollm2", env).status().ToString(), HasSubstr(how));
  EXPECT_THAT(Tandem({"models"}, env).out, HasSubstr("tandem pull hf:ORG/NAME brings one"));
}

TEST(CommandWords, ASharedPrefixIsShorterThanItsPrompt) {
  // No process listens on port 1.
  const auto serve = [](const std::string& prompts, const std::string& shared,
                        const std::string& endpoint) {
    return Tandem({"bench", "serve", "--target=http://127.0.0.1:1", "--requests=1",
                   "--prompt-tokens=" + prompts, "--shared-prefix-tokens=" + shared,
                   "--endpoint=" + endpoint});
  };
  for (const char* prompts : {"100", "64..500"}) {
    const Outcome longer = serve(prompts, "100", "completions");
    EXPECT_EQ(longer.code, 2) << prompts;
    EXPECT_THAT(longer.err, HasSubstr("--shared-prefix-tokens 100: expected fewer"));
    EXPECT_THAT(longer.err, HasSubstr(absl::StrCat("--prompt-tokens ", prompts)));
  }
  EXPECT_EQ(serve("100", "99", "completions").code, 1);
  EXPECT_EQ(serve("100", "100", "chat").code, 1) << "there it is a message of its own";
}

TEST(CommandWords, ARouterIsNoUrl) {
  const Outcome status = Tandem({"status", "--router=http://localhost:1"});
  EXPECT_EQ(status.code, 2);
  EXPECT_THAT(status.err, HasSubstr("without http://"));
}

}  // namespace
}  // namespace tandem::cli
