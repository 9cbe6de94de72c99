#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "common/base/version.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

using CommandMap = std::map<std::string, std::unique_ptr<Command>>;

CommandMap AllCommands() {
  CommandMap commands;
  commands["up"] = NewUpCommand();
  commands["generate"] = NewGenerateCommand();
  commands["chat"] = NewChatCommand();
  commands["tokenize"] = NewTokenizeCommand();
  commands["status"] = NewStatusCommand();
  return commands;
}

std::string Help(const CommandMap& commands) {
  std::string text =
      "tandem: a disaggregated LLM serving cluster\n\nUsage: tandem COMMAND [FLAGS]\n\nCommands:\n";
  for (const auto& [name, command] : commands) {
    absl::StrAppend(&text, absl::StrFormat("  %-12s%s\n", name, command->schema().purpose()));
  }
  absl::StrAppend(
      &text, absl::StrFormat("  %-12s%s\n", "completion", "Prints shell completion: bash or zsh."),
      absl::StrFormat("  %-12s%s\n", "version", "Prints the version."),
      "\n`tandem COMMAND --help` lists a command's flags.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage.\n");
  return text;
}

int Complete(const CommandMap& commands, const std::vector<std::string>& args) {
  std::vector<const config::Schema*> schemas;
  for (const auto& [name, command] : commands) schemas.push_back(&command->schema());
  const std::string shell = args.size() == 2 ? args[1] : "";
  if (shell == "bash") {
    std::fputs(config::BashCompletion("tandem", schemas).c_str(), stdout);
  } else if (shell == "zsh") {
    std::fputs(config::ZshCompletion("tandem", schemas).c_str(), stdout);
  } else {
    std::fprintf(stderr, "tandem completion: expected bash or zsh\n");
    return config::kExitUsage;
  }
  return config::kExitOk;
}

}  // namespace

int TandemMain(const std::vector<std::string>& args, const Environment& env) {
  const CommandMap commands = AllCommands();
  const std::string name = args.empty() ? "" : args[0];
  if (name == "version" || name == "--version") {
    std::printf("tandem %s\n", std::string(kVersion).c_str());
    return config::kExitOk;
  }
  if (name == "help" || name == "--help" || name == "-h") {
    std::fputs(Help(commands).c_str(), stdout);
    return config::kExitOk;
  }
  if (name == "completion") return Complete(commands, args);
  if (const auto found = commands.find(name); found != commands.end()) {
    return found->second->Run({args.begin() + 1, args.end()}, env);
  }
  if (name.empty()) {
    std::fputs(Help(commands).c_str(), stderr);
    return config::kExitUsage;
  }
  std::vector<std::string> names;
  for (const auto& [known, command] : commands) names.push_back(known);
  const std::string nearest = config::Nearest(name, names);
  std::fprintf(stderr, "tandem: unknown command '%s'%s; `tandem help` lists all\n", name.c_str(),
               nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?").c_str());
  return config::kExitUsage;
}

}  // namespace tandem::cli
