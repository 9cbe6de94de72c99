// `tandem tokenize`: implements NewTokenizeCommand (cli/command_line/commands.h).
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

class TokenizeCommand final : public Command {
 public:
  TokenizeCommand() : schema_("tandem tokenize", "Shows a text's token ids, or the text of ids.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("chat", &chat_, "Format the text with the chat template, as a user message.");
    schema_.Add("decode", &decode_, "The argument is a comma-separated list of token ids.");
    schema_.AllowPositionals("TEXT (- reads standard input)", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    if (positionals.empty()) {
      ReportError(schema_, absl::InvalidArgumentError("expected TEXT"));
      return config::kExitUsage;
    }
    std::string text = positionals[0];
    if (text == "-") {
      absl::StatusOr<std::string> read = ReadStandardInput();
      if (!read.ok()) return ReportError(schema_, read.status());
      text = *std::move(read);
    }
    v1::DetokenizeRequest ids;
    if (absl::Status status = decode_ ? ParseIds(text, ids) : absl::OkStatus(); !status.ok()) {
      ReportError(schema_, status);
      return config::kExitUsage;
    }
    const absl::StatusOr<std::string> output = decode_ ? Decode(ids) : Encode(text);
    if (!output.ok()) return ReportError(schema_, output.status());
    std::printf("%s\n", output->c_str());
    return config::kExitOk;
  }

 private:
  absl::StatusOr<std::string> Encode(const std::string& text) {
    v1::TokenizeRequest request;
    if (chat_) {
      v1::ChatMessage& message = *request.mutable_chat()->add_messages();
      message.set_role("user");
      message.set_content(text);
    } else {
      request.set_text(text);
    }
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    const auto response = client->Tokenize(request);
    if (!response.ok()) return response.status();
    return absl::StrJoin(response->ids(), ",");
  }

  static absl::Status ParseIds(const std::string& text, v1::DetokenizeRequest& request) {
    request.set_keep_special_tokens(true);
    for (const absl::string_view part :
         absl::StrSplit(text, absl::ByAnyChar(", \n"), absl::SkipEmpty())) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(part, &id)) {
        return absl::InvalidArgumentError(absl::StrCat("'", part, "' is not a token id"));
      }
      request.add_ids(id);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Decode(const v1::DetokenizeRequest& request) {
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    const auto response = client->Detokenize(request);
    if (!response.ok()) return response.status();
    return response->text();
  }

  config::Schema schema_;
  RouterAccess access_;
  bool chat_ = false;
  bool decode_ = false;
};

}  // namespace

std::unique_ptr<Command> NewTokenizeCommand() { return std::make_unique<TokenizeCommand>(); }

}  // namespace tandem::cli
