// `tandem status`: implements NewStatusCommand (cli/command_line/commands.h).
#include <google/protobuf/util/json_util.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

// What the node's cost model predicted for its engine steps, and what they took.
void AppendStepCosts(const v1::GetStatusResponse& status, std::string& text) {
  bool first = true;
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::StepCost& cost = node.step_cost();
    if (cost.samples() == 0) continue;
    if (first) absl::StrAppend(&text, "\nENGINE STEPS\n");
    first = false;
    const auto steps = static_cast<double>(cost.samples());
    absl::StrAppendFormat(&text,
                          "%s: %d steps, predicted %.2f ms and took %.2f ms each; recent "
                          "predictions are off by %.0f%% (median); a prompt token costs %.3f ms, "
                          "a generated one %.3f ms, a step %.3f ms\n",
                          node.node_id(), cost.samples(), cost.predicted_us() / steps / 1e3,
                          cost.actual_us() / steps / 1e3, 100 * cost.median_relative_error(),
                          cost.prompt_row_us() / 1e3,
                          (cost.generated_row_us() + cost.sampled_row_us()) / 1e3,
                          cost.step_us() / 1e3);
  }
}

void AppendPair(const v1::NodePairStatus& pair, std::string& text) {
  absl::StrAppendFormat(&text, "%s -> %s over %s: %d KV transfers, %.1f MB, the last in %.1f ms",
                        pair.from_node(), pair.to_node(), pair.transport(), pair.kv_transfers(),
                        pair.kv_bytes() / 1e6, pair.last_transfer_ms());
  if (pair.bytes_per_second() > 0) {
    absl::StrAppendFormat(&text, "; on the wire %.2f ms and %.1f MB/s, off by %.0f%%",
                          pair.fixed_ms(), pair.bytes_per_second() / 1e6,
                          100 * pair.rate_relative_error());
  }
  absl::StrAppend(&text, "\n");
}

std::string FormatStatus(const v1::GetStatusResponse& status) {
  const v1::RouterStatus& router = status.router();
  std::string text = absl::StrFormat(
      "router %s, version %s, up %.0f s\n"
      "requests: %d running, %d queued, %d finished, %d failed, %d refused; prefix index: %d "
      "blocks\n\n",
      status.router_id(), status.version(), status.uptime_s(), router.requests_running(),
      router.requests_queued(), router.requests_finished(), router.requests_failed(),
      router.requests_refused(), router.index_blocks());
  absl::StrAppendFormat(&text, "%-20s %-8s %-9s %7s %7s %24s %7s %7s %10s %12s %12s\n", "NODE",
                        "ROLE", "STATE", "RUNNING", "WAITING", "BLOCKS used/cached/total", "LEASES",
                        "EXPORTS", "GENERATED", "KV SENT", "KV RECEIVED");
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::NodeLoad& load = node.load();
    absl::StrAppendFormat(
        &text, "%-20s %-8s %-9s %7d %7d %24s %7d %7d %10d %10.1fMB %10.1fMB\n", node.node_id(),
        node.role(), node.state(), load.sequences_running(), load.sequences_waiting(),
        absl::StrCat(load.blocks_used(), "/", load.blocks_cached(), "/", load.blocks_total()),
        load.leases(), load.exports(), node.counters().generated_tokens(),
        node.counters().kv_bytes_sent() / 1e6, node.counters().kv_bytes_received() / 1e6);
  }
  if (!status.links().empty()) absl::StrAppend(&text, "\nKV TRANSFERS\n");
  for (const v1::NodePairStatus& pair : status.links()) AppendPair(pair, text);
  AppendStepCosts(status, text);
  if (status.nodes().empty()) absl::StrAppend(&text, "(no node has joined)\n");
  return text;
}

class StatusCommand final : public Command {
 public:
  StatusCommand()
      : schema_("tandem status", "Shows nodes, load, blocks, leases and KV transfers.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("json", &json_, "The whole answer as JSON.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    const auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    const auto status = (*client)->GetStatus(absl::Seconds(5));
    if (!status.ok()) return ReportError(schema_, status.status());
    std::string text;
    if (json_) {
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = true;
      options.always_print_primitive_fields = true;
      options.add_whitespace = true;
      const auto converted = google::protobuf::util::MessageToJsonString(*status, &text, options);
      if (!converted.ok())
        return ReportError(schema_, absl::InternalError("cannot convert the status to JSON"));
    } else {
      text = FormatStatus(*status);
    }
    std::fputs(text.c_str(), stdout);
    return config::kExitOk;
  }

 private:
  config::Schema schema_;
  RouterAccess access_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace tandem::cli
