// `tandem generate`: implements NewGenerateCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/batch/batch_run.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/guided_flags.h"
#include "cli/flags/sampling_flags.h"
#include "cli/flags/sequence_flags.h"
#include "cli/report/message_json.h"
#include "cli/report/summary_text.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

// More than a router takes.
constexpr int64_t kPromptBytesMax = 64 << 20;

class GenerateCommand final : public Command {
 public:
  GenerateCommand()
      : schema_("tandem generate",
                "Streams the answer to one prompt, or answers a file of requests.") {
    RegisterRouterAccess(schema_, access_, "Request");
    schema_.Add("chat", &chat_,
                "A user message, formatted with the model's chat template; - = standard input.",
                {.group = "Request", .check = [](const std::string& text) {
                   return text.empty() ? absl::InvalidArgumentError("a message that is not empty")
                                       : absl::OkStatus();
                 }});
    schema_.Add("system", &system_, "System message before --chat.", {.group = "Request"});
    schema_.Add("tokens", &tokens_, "The prompt as token ids.",
                {.group = "Request", .check = [](const std::vector<std::string>& ids) {
                   return ids.empty() ? absl::InvalidArgumentError("at least one token id")
                                      : absl::OkStatus();
                 }});
    schema_.Add("request-id", &request_id_, "Id of the request; default: the router draws one.",
                {.group = "Request"});
    schema_.Add("cache-salt", &cache_salt_,
                "Requests share cached prefixes only under equal salts.", {.group = "Request"});
    schema_.Add("service-tier", &service_tier_,
                "The router's service tier that serves the request; empty = the default one.",
                {.group = "Request"});
    schema_.Add("logprobs", &logprobs_,
                "Top log-probabilities of every token, with --json; -1 = none.",
                {.min = -1, .max = 20, .group = "Request"});
    RegisterSamplingFlags(schema_, sampling_);
    RegisterSequenceFlags(schema_, sequences_);
    RegisterGuidedFlags(schema_, guided_);
    schema_.Add("summary", &summary_,
                "Print where and how the answer was served to standard error.",
                {.group = "Output"});
    schema_.Add("json", &json_, "One JSON object per streamed message instead of text.",
                {.group = "Output"});
    schema_.Add(
        "batch", &batch_.input,
        "A JSON Lines file of requests instead of one prompt: {\"custom_id\", \"body\"} as in "
        "OpenAI's batches, or {\"prompt\"} or {\"messages\"} with parameters; - = standard input.",
        {.group = "Batch"});
    schema_.Add("output", &batch_.output,
                "A batch's output file: one line for each answer, in the order in which they end. "
                "Requests with an answer in it are skipped. - = standard output, where none is.",
                {.group = "Batch"});
    schema_.Add("concurrency", &batch_.concurrency, "Requests of a batch in flight at a time.",
                {.min = 1, .max = 1024, .group = "Batch"});
    schema_.AllowPositionals("PROMPT (- reads standard input)", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    v1::GenerateRequest request;
    const bool batch = !batch_.input.empty() || !batch_.output.empty();
    const absl::Status built = batch ? BuildBatch(positionals) : Build(positionals, request);
    if (!built.ok()) {
      ReportError(schema_, built);
      return config::kExitUsage;
    }
    return batch ? AnswerBatch() : AnswerOne(request);
  }

 private:
  // These refuse flags that would change nothing. Values from the environment or a file may go
  // unused: they are for every run.
  absl::Status CheckBatchFlags() const {
    const std::pair<const char*, bool> of_one[] = {
        {"json", json_}, {"summary", summary_}, {"logprobs", logprobs_ >= 0}};
    for (const auto& [name, asked] : of_one) {
      if (asked && IsFlag(name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, ": given with --batch, whose output has its own form; ",
                         "expected one of the two"));
      }
    }
    return absl::OkStatus();
  }
  absl::Status CheckFlagsOfOne() const {
    if (IsFlag("concurrency")) return absl::InvalidArgumentError("--concurrency needs --batch");
    if (!system_.empty() && chat_.empty() && IsFlag("system"))
      return absl::InvalidArgumentError("--system needs --chat: a PROMPT has no messages");
    if (logprobs_ >= 0 && !json_ && IsFlag("logprobs"))
      return absl::InvalidArgumentError("--logprobs needs --json: the text alone shows none");
    return absl::OkStatus();
  }

  // Whether the field's value comes from the command line.
  bool IsFlag(absl::string_view name) const {
    for (const config::Schema::Field& field : schema_.fields()) {
      if (field.name == name) return field.origin == config::Origin::kFlag;
    }
    return false;
  }

  int AnswerOne(const v1::GenerateRequest& request) {
    v1::Finished finished;
    bool ended_with_newline = true;
    const auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    const absl::Status status = (*client)->Generate(request, [&](const v1::GenerateResponse& part) {
      if (part.finished().sequence_index() == 0 && part.has_finished()) finished = part.finished();
      if (json_) {
        PrintJson(part);
      } else if (request.n() > 1) {
        PrintWhenWhole(part);
      } else if (part.has_delta() && !part.delta().text().empty()) {
        const std::string& text = part.delta().text();
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
        ended_with_newline = text.back() == '\n';
      }
      // An answer that has no reader is cancelled.
      return std::ferror(stdout) == 0;
    });
    if (!json_ && !ended_with_newline) std::fputc('\n', stdout);
    std::fflush(stdout);
    if (!status.ok()) return ReportError(schema_, status);
    if (summary_) std::fputs(FormatSummary(finished).c_str(), stderr);
    const std::string note = request.n() > 1 || json_ ? "" : CutOffNote(finished);
    if (!note.empty() && isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "%s\n", note.c_str());
    return config::kExitOk;
  }

  absl::Status BuildBatch(const std::vector<std::string>& positionals) {
    if (batch_.input.empty() || batch_.output.empty()) {
      return absl::InvalidArgumentError("--batch and --output go together");
    }
    if (!positionals.empty() || !chat_.empty() || !tokens_.empty() || !system_.empty() ||
        !request_id_.empty()) {
      return absl::InvalidArgumentError(
          "--batch: the file has the prompts, messages and names, expected none on the command "
          "line");
    }
    RETURN_IF_ERROR(CheckBatchFlags());
    RETURN_IF_ERROR(CheckInputs({{"--batch", batch_.input},
                                 {"--json-schema", guided_.json_schema},
                                 {"--grammar", guided_.grammar}}));
    RETURN_IF_ERROR(BuildParameters(batch_.defaults));
    // --params may ask for several, too.
    const v1::GenerateRequest& defaults = batch_.defaults;
    if ((defaults.has_n() && defaults.n() != 1) || defaults.best_of() > 1)
      return absl::InvalidArgumentError("--n: a line of a batch gets one answer, expected 1");
    return absl::OkStatus();
  }

  int AnswerBatch() {
    batch_.defaults.set_return_token_ids(true);
    const auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    const auto counts = RunBatch(batch_, **client);
    if (!counts.ok()) return ReportError(schema_, counts.status());
    std::fprintf(stderr, "%ld lines: %ld answered, %ld answered before, %ld failed\n",
                 static_cast<long>(counts->lines), static_cast<long>(counts->answered),
                 static_cast<long>(counts->skipped), static_cast<long>(counts->failed));
    return counts->failed == 0 ? config::kExitOk : config::kExitFailed;
  }

  absl::Status Build(const std::vector<std::string>& positionals, v1::GenerateRequest& request) {
    RETURN_IF_ERROR(CheckFlagsOfOne());
    // A prompt that is piped in needs no name.
    const bool piped =
        positionals.empty() && chat_.empty() && tokens_.empty() && isatty(STDIN_FILENO) == 0;
    if (piped && guided_.json_schema != "-" && guided_.grammar != "-") {
      ASSIGN_OR_RETURN(const std::string prompt, ReadStandardInput(kPromptBytesMax));
      if (!prompt.empty()) return BuildFrom({prompt}, request);
    }
    return BuildFrom(positionals, request);
  }

  absl::Status BuildFrom(const std::vector<std::string>& positionals,
                         v1::GenerateRequest& request) {
    const int given =
        (positionals.empty() ? 0 : 1) + (chat_.empty() ? 0 : 1) + (tokens_.empty() ? 0 : 1);
    if (given != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected one of PROMPT, --chat and --tokens, got ", given));
    }
    RETURN_IF_ERROR(CheckInputs({{"PROMPT", positionals.empty() ? "" : positionals[0]},
                                 {"--chat", chat_},
                                 {"--json-schema", guided_.json_schema},
                                 {"--grammar", guided_.grammar}}));
    if (!positionals.empty()) {
      ASSIGN_OR_RETURN(*request.mutable_text(), TextOf(positionals[0]));
    } else if (!chat_.empty()) {
      if (!system_.empty()) {
        v1::ChatMessage& message = *request.mutable_chat()->add_messages();
        message.set_role("system");
        message.set_content(system_);
      }
      v1::ChatMessage& message = *request.mutable_chat()->add_messages();
      message.set_role("user");
      ASSIGN_OR_RETURN(*message.mutable_content(), TextOf(chat_));
    } else {
      for (const std::string& token : tokens_) {
        int32_t id = 0;
        if (!absl::SimpleAtoi(token, &id)) {
          return absl::InvalidArgumentError(
              absl::StrCat("--tokens: '", token, "' is not a token id"));
        }
        request.mutable_tokens()->add_ids(id);
      }
    }
    request.set_request_id(request_id_);
    request.set_return_token_ids(json_);
    return BuildParameters(request);
  }

  // What is given, or for - standard input.
  static absl::StatusOr<std::string> TextOf(const std::string& given) {
    if (given == "-") return ReadStandardInput(kPromptBytesMax);
    return given;
  }

  absl::Status BuildParameters(v1::GenerateRequest& request) const {
    request.set_cache_salt(cache_salt_);
    request.set_service_tier(service_tier_);
    ApplySamplingFlags(sampling_, request);
    RETURN_IF_ERROR(ApplyGuidedFlags(guided_, request));
    if (logprobs_ >= 0) request.mutable_sampling()->set_logprobs(logprobs_);
    return ApplySequenceFlags(sequences_, request);
  }

  // Several answers arrive interleaved; each is printed when it is complete.
  void PrintWhenWhole(const v1::GenerateResponse& part) {
    texts_[part.delta().sequence_index()] += part.delta().text();
    if (!part.has_finished()) return;
    const int32_t index = part.finished().sequence_index();
    std::printf("[%d] %s\n", index, texts_[index].c_str());
    std::fflush(stdout);
  }

  static void PrintJson(const v1::GenerateResponse& part);

  config::Schema schema_;
  RouterAccess access_;
  std::string chat_;
  std::string system_;
  std::vector<std::string> tokens_;
  std::string request_id_;
  std::string cache_salt_, service_tier_;
  int32_t logprobs_ = -1;
  SamplingFlags sampling_;
  SequenceFlags sequences_;
  std::map<int32_t, std::string> texts_;  // by sequence index
  GuidedFlags guided_;
  BatchOptions batch_;
  bool summary_ = false;
  bool json_ = false;
};

void GenerateCommand::PrintJson(const v1::GenerateResponse& part) {
  std::printf("%s\n", ToJson(part).dump().c_str());
  std::fflush(stdout);
}

}  // namespace

std::unique_ptr<Command> NewGenerateCommand() { return std::make_unique<GenerateCommand>(); }

}  // namespace tandem::cli
