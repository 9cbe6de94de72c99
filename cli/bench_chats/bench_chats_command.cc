// `tandem bench chats`: implements NewBenchChatsCommand (cli/command_line/commands.h).
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_chats/chat_run.h"
#include "cli/bench_chats/chats_report.h"
#include "cli/cluster_load/cluster_bench_command.h"
#include "cli/cluster_load/measured_cluster.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/runtime/stop_signal.h"

namespace tandem::cli {
namespace {

class BenchChatsCommand final : public ClusterBenchCommand {
 public:
  BenchChatsCommand()
      : ClusterBenchCommand(
            "tandem bench chats",
            "Holds chats with a cluster of its own: what later turns compute again, how "
            "soon they are answered.") {
    up_.http.clear();
    up_.grpc = {"127.0.0.1:0"};
    RegisterUp({"grpc", "http"});  // ports are free ones
    Register();
  }

 private:
  void Register() {
    const std::string load = "Load";
    schema_.Add("chats", &chats_.chats, "Chats, one after another.",
                {.min = 1, .max = 100'000, .unit = "chats", .group = load});
    schema_.Add("turns", &chats_.turns, "Messages of a chat, each with its answer.",
                {.min = 1, .max = 1000, .unit = "turns", .group = load});
    schema_.Add("prompt-tokens", &first_tokens_,
                "Length of a chat's first message: 512, or a range 128..1024.", {.group = load});
    schema_.Add("message-tokens", &message_tokens_, "Length of each later message.",
                {.group = load});
    schema_.Add("output-tokens", &answer_tokens_, "Length of answers.", {.group = load});
    schema_.Add("token-ids", &token_ids_, "Token ids that messages are drawn from.",
                {.group = load});
    schema_.Add("seed", &seed_, "Decides messages, lengths and the requests' own seeds.",
                {.min = 0, .group = load});
    RegisterResultFiles(schema_, results_);
  }

  absl::Status Plan() override {
    ASSIGN_OR_RETURN(chats_.first_tokens, ParseLengthRange("prompt-tokens", first_tokens_));
    ASSIGN_OR_RETURN(chats_.message_tokens, ParseLengthRange("message-tokens", message_tokens_));
    ASSIGN_OR_RETURN(chats_.answer_tokens, ParseLengthRange("output-tokens", answer_tokens_));
    ASSIGN_OR_RETURN(chats_.token_ids, ParseLengthRange("token-ids", token_ids_));
    chats_.seed = static_cast<uint64_t>(seed_);
    return CheckOutputs(results_.files());
  }

  absl::Status Measure(const Environment& env) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredCluster> cluster,
                     MeasuredCluster::Start(
                         up_, env, [&](absl::Duration wait) { return stop->Wait(wait) != 0; }));
    const std::unique_ptr<Client> client = Client::Create(cluster->grpc_address());
    ChatsReport report{
        .settings = MakeSettings(), .block_tokens = up_.node.kv.block_tokens, .turns = {}};
    ASSIGN_OR_RETURN(report.turns,
                     RunChats(chats_, *client, [&] { return cluster->CheckRunning(); }));
    cluster->Drain();
    return PublishResult(
        results_, FormatChatsTable(report), [&] { return FormatChatsJson(report); },
        [&] { return FormatChatsHtml(report); });
  }

  Settings MakeSettings() const {
    return {{"model", ModelName()},
            {"fleet", absl::StrFormat("%d prefill nodes, %d decode nodes, blocks of %d tokens",
                                      up_.prefill, up_.decode, up_.node.kv.block_tokens)},
            {"load", absl::StrFormat("%d chats of %d turns, one after another", chats_.chats,
                                     chats_.turns)},
            {"tokens", absl::StrCat(first_tokens_, " first, ", message_tokens_, " later, ",
                                    answer_tokens_, " output")},
            {"seed", absl::StrCat(seed_)},
            {"units", "history, new, cached, recomputed: tokens; times: ms"}};
  }

  ChatOptions chats_;
  std::string first_tokens_ = "512", message_tokens_ = "128", answer_tokens_ = "128";
  std::string token_ids_ = "33..126";
  int64_t seed_ = 1;
};

}  // namespace

std::unique_ptr<Command> NewBenchChatsCommand() { return std::make_unique<BenchChatsCommand>(); }

}  // namespace tandem::cli
