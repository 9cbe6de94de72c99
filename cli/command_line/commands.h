// The commands of `tandem`. A command registers its flags in a schema, which help and completion
// read too, and runs. Each New...Command is implemented in a source of its name: cli/commands/,
// cli/chaos/chaos_command.cc, cli/bench_serve/ and cli/bench_trace/.
// Thread safety: none; the main thread. Owner: TandemMain.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"

namespace tandem::cli {

using Environment = std::map<std::string, std::string>;

class Command {
 public:
  virtual ~Command() = default;
  virtual config::Schema& schema() = 0;
  // `args` without the command's name. Returns the exit code.
  virtual int Run(const std::vector<std::string>& args, const Environment& env) = 0;
};

std::unique_ptr<Command> NewUpCommand();
std::unique_ptr<Command> NewGenerateCommand();
std::unique_ptr<Command> NewChatCommand();
std::unique_ptr<Command> NewTokenizeCommand();
std::unique_ptr<Command> NewDebtsCommand();
std::unique_ptr<Command> NewPsCommand();
std::unique_ptr<Command> NewStatusCommand();
std::unique_ptr<Command> NewTopCommand();
std::unique_ptr<Command> NewTraceCommand();
std::unique_ptr<Command> NewWhyCommand();
std::unique_ptr<Command> NewKeysCommand();
std::unique_ptr<Command> NewCertsCommand();
std::unique_ptr<Command> NewPullCommand();
std::unique_ptr<Command> NewModelsCommand();
std::unique_ptr<Command> NewBenchCommand();
std::unique_ptr<Command> NewBenchChatsCommand();
std::unique_ptr<Command> NewBenchKvCommand();
std::unique_ptr<Command> NewBenchLendingCommand();
std::unique_ptr<Command> NewBenchModesCommand();
std::unique_ptr<Command> NewBenchServeCommand();
std::unique_ptr<Command> NewBenchTraceCommand();
std::unique_ptr<Command> NewEvalCommand();
std::unique_ptr<Command> NewSimCommand();
std::unique_ptr<Command> NewSimTraceCommand();
std::unique_ptr<Command> NewChaosCommand();

// The text of docs/CONFIG.md: the flags of all programs and commands.
std::string ConfigMarkdown();

// The whole main: runs the command that `args` name, or prints help, version or completions.
// Returns the exit code.
int TandemMain(const std::vector<std::string>& args, const Environment& env);

}  // namespace tandem::cli
