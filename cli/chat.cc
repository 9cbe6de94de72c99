#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/parse.h"
#include "cli/sampling_flags.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

constexpr char kChatHelp[] =
    "/help     this list\n"
    "/system   sets the system message: /system TEXT\n"
    "/clear    starts over\n"
    "/summary  how the last answer was served\n"
    "/quit     leaves\n";

class ChatCommand final : public Command {
 public:
  ChatCommand() : schema_("tandem chat", "Talks with the model, turn by turn.") {
    schema_.Add("router", &router_, "Address of a router.", {.group = "Request"});
    schema_.Add("system", &system_, "System message.", {.group = "Request"});
    RegisterSamplingFlags(schema_, sampling_);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    client_ = Client::Create(router_);
    const auto model = client_->GetModel();
    if (!model.ok()) return ReportError(schema_, model.status());
    interactive_ = isatty(STDIN_FILENO) != 0;
    if (interactive_) std::printf("%s; /help lists commands\n", model->name().c_str());
    Clear();
    std::string line;
    while (ReadLine(line)) {
      if (line.empty()) continue;
      if (line == "/quit" || line == "/exit") break;
      if (line[0] == '/') {
        HandleCommand(line);
      } else if (absl::Status status = Turn(line); !status.ok()) {
        return ReportError(schema_, status);
      }
    }
    return config::kExitOk;
  }

 private:
  bool ReadLine(std::string& line) {
    if (interactive_) {
      std::printf("\n> ");
      std::fflush(stdout);
    }
    return static_cast<bool>(std::getline(std::cin, line));
  }

  void Clear() {
    chat_.Clear();
    if (!system_.empty()) AddMessage("system", system_);
  }

  void AddMessage(const std::string& role, const std::string& content) {
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role(role);
    message.set_content(content);
  }

  void HandleCommand(const std::string& line) {
    if (line == "/clear") {
      Clear();
    } else if (line == "/summary") {
      std::fputs(FormatSummary(last_).c_str(), stdout);
    } else if (absl::StartsWith(line, "/system ")) {
      system_ = line.substr(8);
      Clear();
    } else {
      std::fputs(line == "/help" ? kChatHelp
                                 : absl::StrCat("unknown command ", line, "\n", kChatHelp).c_str(),
                 stdout);
    }
  }

  absl::Status Turn(const std::string& text) {
    AddMessage("user", text);
    v1::GenerateRequest request;
    *request.mutable_chat() = chat_;
    ApplySamplingFlags(sampling_, request);
    std::string answer;
    const absl::Status status = client_->Generate(request, [&](const v1::GenerateResponse& part) {
      if (part.has_finished()) last_ = part.finished();
      if (part.has_delta()) {
        const std::string& delta = part.delta().text();
        std::fwrite(delta.data(), 1, delta.size(), stdout);
        std::fflush(stdout);
        answer += delta;
      }
      return true;
    });
    std::printf("\n");
    if (absl::IsInvalidArgument(status)) {
      // Such as a conversation longer than the context: the user may go on after /clear.
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      chat_.mutable_messages()->RemoveLast();
      return absl::OkStatus();
    }
    if (status.ok()) AddMessage("assistant", answer);
    return status;
  }

  config::Schema schema_;
  std::string router_ = "127.0.0.1:50051";
  std::string system_;
  SamplingFlags sampling_;
  std::unique_ptr<Client> client_;
  v1::ChatMessages chat_;
  v1::Finished last_;
  bool interactive_ = false;
};

}  // namespace

std::unique_ptr<Command> NewChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace tandem::cli
