// `tandem chat`: implements NewChatCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/flags/sampling_flags.h"
#include "cli/report/markdown_stream.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

constexpr char kChatHelp[] =
    "/help     this list\n"
    "/system   sets the system message and starts over: /system TEXT\n"
    "/clear    starts over\n"
    "/retry    sends the last message again and discards its answer\n"
    "/undo     removes the last message and its answer\n"
    "/summary  how the last answer was served\n"
    "/quit     leaves\n";

class ChatCommand final : public Command {
 public:
  ChatCommand() : schema_("tandem chat", "Chats with the model.") {
    RegisterRouterAccess(schema_, access_, "Request");
    schema_.Add("system", &system_, "System message.", {.group = "Request"});
    RegisterSamplingFlags(schema_, sampling_);
    schema_.Add("markdown", &markdown_, "Render an answer's Markdown on a terminal.",
                {.group = "Output"});
    schema_.Add("rate", &rate_,
                "Print tokens and tokens per second after each answer; always on a terminal.",
                {.group = "Output"});
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    client_ = *std::move(client);
    const auto model = client_->GetModel();
    if (!model.ok()) return ReportError(schema_, model.status());
    interactive_ = isatty(STDIN_FILENO) != 0;
    markdown_ = markdown_ && isatty(STDOUT_FILENO) != 0;
    rate_ = rate_ || interactive_;
    if (interactive_) std::printf("%s; /help lists commands\n", model->name().c_str());
    Clear();
    std::string line;
    while (ReadLine(line)) {
      if (line.empty()) continue;
      if (line == "/quit" || line == "/exit") break;
      const absl::Status status = line[0] == '/' ? HandleCommand(line) : Turn(line);
      std::fflush(stdout);
      if (!status.ok()) return ReportError(schema_, status);
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

  absl::Status HandleCommand(const std::string& line) {
    if (line == "/clear") {
      Clear();
    } else if (line == "/retry") {
      const std::string last = ForgetLastTurn();
      if (!last.empty()) return Turn(last);
      std::printf("nothing was asked yet\n");
    } else if (line == "/undo") {
      if (ForgetLastTurn().empty()) std::printf("nothing was asked yet\n");
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
    return absl::OkStatus();
  }

  // Removes the user's last message and returns it; empty when there is none.
  std::string ForgetLastTurn() {
    std::string asked;
    while (asked.empty() && chat_.messages_size() > 0) {
      const v1::ChatMessage& last = chat_.messages(chat_.messages_size() - 1);
      if (last.role() == "system") break;
      if (last.role() == "user") asked = last.content();
      chat_.mutable_messages()->RemoveLast();
    }
    return asked;
  }

  absl::Status Turn(const std::string& text) {
    AddMessage("user", text);
    v1::GenerateRequest request;
    *request.mutable_chat() = chat_;
    ApplySamplingFlags(sampling_, request);
    std::string answer;
    MarkdownStream styled;
    const absl::Status status = client_->Generate(request, [&](const v1::GenerateResponse& part) {
      if (part.has_finished()) last_ = part.finished();
      if (part.has_delta()) {
        const std::string& delta = part.delta().text();
        Print(markdown_ ? styled.Append(delta) : delta);
        answer += delta;
      }
      return true;
    });
    Print(styled.Flush() + "\n");
    if (absl::IsInvalidArgument(status)) {
      // For example a conversation longer than the context: the user can continue after /clear.
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      chat_.mutable_messages()->RemoveLast();
      return absl::OkStatus();
    }
    if (!status.ok()) return status;
    AddMessage("assistant", answer);
    if (rate_) Print(FormatRate(last_));
    return absl::OkStatus();
  }

  static void Print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  // "[8 tokens, 35.1 tokens/s after 120 ms]".
  static std::string FormatRate(const v1::Finished& finished) {
    const v1::Timing& timing = finished.timing();
    const int32_t tokens = finished.usage().output_tokens();
    const double decode_ms = timing.total_ms() - timing.first_token_ms();
    std::string text = absl::StrCat("[", tokens, " tokens");
    if (tokens > 1 && decode_ms > 0) {
      absl::StrAppendFormat(&text, ", %.1f tokens/s", 1000.0 * (tokens - 1) / decode_ms);
    }
    absl::StrAppendFormat(&text, " after %.0f ms]\n", timing.first_token_ms());
    return text;
  }

  config::Schema schema_;
  RouterAccess access_;
  std::string system_;
  SamplingFlags sampling_;
  std::unique_ptr<Client> client_;
  v1::ChatMessages chat_;
  v1::Finished last_;
  bool markdown_ = true, rate_ = false;
  bool interactive_ = false;
};

}  // namespace

std::unique_ptr<Command> NewChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace tandem::cli
