// `tandem chat`: implements NewChatCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/chat/conversation.h"
#include "cli/chat/message_lines.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/flags/sampling_flags.h"
#include "cli/report/markdown_stream.h"
#include "cli/report/summary_text.h"
#include "cli/terminal/interrupt_key.h"
#include "cli/terminal/interrupts.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/word_wrap.h"
#include "common/base/status_macros.h"
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
    "/quit     leaves\n"
    "A line that ends with \\ goes on in the next one; \"\"\" begins and ends a message of many\n"
    "lines. Ctrl-C stops an answer; twice, or Ctrl-D, leaves.\n";

// "auto": a file in the user's folder for what programs remember.
std::string HistoryFile(const std::string& flag, const Environment& env) {
  if (flag != "auto") return flag;
  const auto folder = [&env](const char* name) {
    const auto found = env.find(name);
    return found == env.end() ? "" : found->second;
  };
  const std::string state = folder("XDG_STATE_HOME"), home = folder("HOME");
  if (!state.empty()) return absl::StrCat(state, "/tandem/chat_history");
  return home.empty() ? "" : absl::StrCat(home, "/.local/state/tandem/chat_history");
}

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
    schema_.Add("history", &history_,
                "File with the last 1,000 messages typed on a terminal, for you alone; auto: "
                "tandem/chat_history in XDG_STATE_HOME or ~/.local/state; empty = none.",
                {.group = "Input"});
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    output_ = DescribeTerminal(STDOUT_FILENO, env);
    interactive_ = output_.is_terminal && DescribeTerminal(STDIN_FILENO, env).is_terminal;
    markdown_ = markdown_ && output_.is_terminal;
    rate_ = rate_ || interactive_;
    env_ = env;
    const absl::Status status = Chat();
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::Status Chat() {
    // Before gRPC starts threads: they must not take Ctrl-C.
    if (interactive_) {
      ASSIGN_OR_RETURN(interrupts_, Interrupts::Create());
      interrupt_key_.emplace();
      ASSIGN_OR_RETURN(editor_, LineEditor::Create({HistoryFile(history_, env_), CommandNames()}));
      interrupt_key_->SetInterrupts(false);  // the editor sets the terminal up, too
    }
    ASSIGN_OR_RETURN(client_, Connect(access_));
    ASSIGN_OR_RETURN(const v1::GetModelResponse model, AwaitModel());
    if (interactive_) std::printf("%s; /help lists commands\n", model.name().c_str());
    conversation_.Start(system_);
    while (const std::optional<std::string> message = ReadMessage()) {
      if (message->empty()) continue;
      if (editor_ != nullptr) editor_->Remember(*message);
      if (*message == "/quit" || *message == "/exit") break;
      RETURN_IF_ERROR(message->front() == '/' ? HandleCommand(*message) : Turn(*message));
    }
    return absl::OkStatus();
  }

  // Ctrl-C gives up a router that does not answer.
  absl::StatusOr<v1::GetModelResponse> AwaitModel() {
    BeginInterrupts();
    absl::StatusOr<v1::GetModelResponse> model = client_->GetModel(cancellation_);
    if (EndInterrupts()) return absl::CancelledError("interrupted");
    return model;
  }

  // Until EndInterrupts, Ctrl-C on a terminal ends the call that runs.
  void BeginInterrupts() {
    cancellation_.Reset();
    if (interrupts_ == nullptr) return;
    interrupts_->Begin([this] { cancellation_.Cancel(); });
    interrupt_key_->SetInterrupts(true);
  }
  // Returns whether Ctrl-C came since BeginInterrupts.
  bool EndInterrupts() {
    if (interrupts_ == nullptr) return false;
    interrupt_key_->SetInterrupts(false);
    return interrupts_->End() > 0;
  }

  // The next message; nullopt when the user leaves.
  std::optional<std::string> ReadMessage() {
    MessageLines lines;
    while (!lines.complete()) {
      TypedLine line = ReadLine(lines.empty() ? "> " : "... ");
      if (line.kind == TypedLine::Kind::kEnd) {
        if (lines.empty()) return std::nullopt;
        break;
      }
      if (line.kind == TypedLine::Kind::kInterrupt) {
        const bool idle = lines.empty() && line.text.empty();
        if (idle && just_interrupted_) return std::nullopt;
        if (idle) std::printf("Ctrl-C again leaves; so does Ctrl-D\n");
        just_interrupted_ = true;
        lines.Take();
        continue;
      }
      just_interrupted_ = false;
      lines.Add(line.text);
    }
    return lines.Take();
  }

  TypedLine ReadLine(const std::string& prompt) {
    if (editor_ != nullptr) {
      if (prompt == "> ") Print("\n");
      return editor_->Read(prompt);
    }
    TypedLine line;
    if (std::getline(std::cin, line.text)) line.kind = TypedLine::Kind::kLine;
    return line;
  }

  using Handler = absl::Status (ChatCommand::*)(const std::string& text);
  static const std::map<std::string, Handler>& Commands() {
    static const auto* const commands = new std::map<std::string, Handler>{
        {"/help", &ChatCommand::ShowHelp},   {"/system", &ChatCommand::SetSystem},
        {"/clear", &ChatCommand::StartOver}, {"/retry", &ChatCommand::Retry},
        {"/undo", &ChatCommand::Undo},       {"/summary", &ChatCommand::ShowSummary}};
    return *commands;
  }
  static std::vector<std::string> CommandNames() {
    std::vector<std::string> names = {"/quit"};
    for (const auto& [name, handler] : Commands()) names.push_back(name);
    return names;
  }

  absl::Status HandleCommand(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string text = space == std::string::npos ? "" : line.substr(space + 1);
    const auto found = Commands().find(name);
    if (found != Commands().end()) return (this->*found->second)(text);
    Print(absl::StrCat("unknown command ", line, "\n", kChatHelp));
    return absl::OkStatus();
  }

  absl::Status ShowHelp(const std::string&) {
    Print(kChatHelp);
    return absl::OkStatus();
  }
  absl::Status ShowSummary(const std::string&) {
    Print(FormatSummary(last_));
    return absl::OkStatus();
  }
  absl::Status SetSystem(const std::string& text) {
    system_ = text;
    return StartOver("");
  }
  absl::Status StartOver(const std::string&) {
    conversation_.Start(system_);
    unanswered_.clear();
    return absl::OkStatus();
  }
  absl::Status Undo(const std::string&) {
    if (ForgetLastTurn().empty()) Print("nothing was asked yet\n");
    return absl::OkStatus();
  }
  absl::Status Retry(const std::string&) {
    const std::string last = ForgetLastTurn();
    if (!last.empty()) return Turn(last);
    Print("nothing was asked yet\n");
    return absl::OkStatus();
  }
  std::string ForgetLastTurn() {
    if (!unanswered_.empty()) return std::exchange(unanswered_, "");
    return conversation_.ForgetLastTurn();
  }

  // Asks, and shows the answer while it comes.
  absl::Status Turn(const std::string& text) {
    conversation_.Add("user", text);
    unanswered_.clear();
    v1::GenerateRequest request;
    *request.mutable_chat() = conversation_.messages();
    ApplySamplingFlags(sampling_, request);
    std::string answer;
    MarkdownStream styled;
    // The window may have another size than at the last answer.
    WordWrap wrapped(DescribeTerminal(STDOUT_FILENO, env_).columns);
    last_.Clear();
    BeginInterrupts();
    const absl::Status status = client_->Generate(
        request,
        [&](const v1::GenerateResponse& part) {
          if (part.has_finished()) last_ = part.finished();
          const std::string& delta = part.delta().text();
          Print(wrapped.Append(markdown_ ? styled.Append(delta) : delta));
          answer += delta;
          return true;
        },
        cancellation_);
    const bool stopped = EndInterrupts();
    just_interrupted_ = stopped;
    Print(absl::StrCat(wrapped.Append(markdown_ ? styled.Flush() : ""), wrapped.Flush(), "\n"));
    return EndTurn(text, answer, status, stopped);
  }

  // Keeps what was said, and tells how the answer ended.
  absl::Status EndTurn(const std::string& text, const std::string& answer,
                       const absl::Status& status, bool stopped) {
    if (!answer.empty()) {
      conversation_.Add("assistant", answer);
    } else if (!status.ok()) {
      conversation_.ForgetLastTurn();
      unanswered_ = text;
    }
    if (stopped && !status.ok()) {
      Note("[stopped; /retry asks again]");
    } else if (!status.ok()) {
      // For example a conversation longer than the context: the user can continue after /clear.
      if (!interactive_ && !absl::IsInvalidArgument(status)) return status;
      Note(absl::StrCat(answer.empty() ? "" : "the answer broke off: ", status.message()));
    } else {
      if (rate_) Print(FormatRate(last_));
      const std::string note = CutOffNote(last_);
      if (!note.empty()) Note(note);
    }
    return absl::OkStatus();
  }

  static void Print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  // Prints a remark about an answer; to standard error when the answers go to a file.
  void Note(const std::string& text) const {
    std::fprintf(output_.is_terminal ? stdout : stderr, "%s\n", text.c_str());
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
  std::string history_ = "auto";
  Environment env_;
  Terminal output_;
  std::unique_ptr<Interrupts> interrupts_;
  std::optional<InterruptKey> interrupt_key_;  // set with interrupts_
  std::unique_ptr<LineEditor> editor_;
  std::unique_ptr<Client> client_;
  Cancellation cancellation_;
  Conversation conversation_;
  std::string unanswered_;  // the last message, when no answer to it came
  v1::Finished last_;
  bool markdown_ = true, rate_ = false;
  bool interactive_ = false;
  bool just_interrupted_ = false;  // Ctrl-C was the user's last action
};

}  // namespace

std::unique_ptr<Command> NewChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace tandem::cli
