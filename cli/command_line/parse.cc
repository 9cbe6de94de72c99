#include "cli/command_line/parse.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/version.h"
#include "common/config/process_main.h"

namespace tandem::cli {

std::optional<int> ParseArguments(config::Schema& schema, const std::vector<std::string>& args,
                                  const Environment& env, std::vector<std::string>* positionals) {
  const absl::StatusOr<config::Parsed> parsed =
      schema.Parse({.args = args, .env = env, .file = ""});
  if (!parsed.ok()) {
    ReportError(schema, parsed.status());
    return config::kExitUsage;
  }
  if (parsed->help_requested) {
    std::fputs(schema.Help().c_str(), stdout);
    return config::kExitOk;
  }
  if (parsed->version_requested) {
    std::printf("tandem %s\n", std::string(kVersion).c_str());
    return config::kExitOk;
  }
  if (parsed->print_requested) {
    std::fputs(schema.PrintEffective().c_str(), stdout);
    return config::kExitOk;
  }
  if (positionals != nullptr) *positionals = parsed->positionals;
  return std::nullopt;
}

int ReportError(const config::Schema& schema, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", schema.program().c_str(), std::string(status.message()).c_str());
  return config::kExitFailed;
}

namespace {

std::string Sources(const v1::TokensBySource& tokens) {
  return absl::StrFormat("%d computed, %d received, %d cached", tokens.computed(),
                         tokens.received(), tokens.cached());
}

}  // namespace

std::string FormatSummary(const v1::Finished& finished) {
  const v1::Route& route = finished.route();
  const v1::Usage& usage = finished.usage();
  const v1::Timing& timing = finished.timing();
  std::string text;
  if (route.prefill_node().empty()) {
    absl::StrAppend(&text, "  prefill      on the decode node\n");
  } else {
    absl::StrAppend(&text, "  prefill      ", route.prefill_node(), " (",
                    Sources(route.prefill_tokens()), ")\n");
  }
  absl::StrAppend(&text, "  decode       ", route.decode_node(), " (",
                  Sources(route.decode_tokens()), ")\n");
  absl::StrAppendFormat(&text, "  tokens       %d prompt (%d cached), %d output\n",
                        usage.prompt_tokens(), usage.cached_tokens(), usage.output_tokens());
  const double decode_ms = timing.total_ms() - timing.first_token_ms();
  absl::StrAppendFormat(&text, "  first token  %.1f ms", timing.first_token_ms());
  if (usage.output_tokens() > 1 && decode_ms > 0) {
    absl::StrAppendFormat(&text, ", then %.1f tokens/s",
                          1000.0 * (usage.output_tokens() - 1) / decode_ms);
  }
  absl::StrAppend(&text, "\n");
  if (route.kv_bytes_moved() > 0) {
    const double mib = route.kv_bytes_moved() / 1048576.0;
    absl::StrAppendFormat(&text, "  KV moved     %.2f MiB over %s", mib, route.transport());
    if (route.kv_receive_ms() > 0) {
      // Small KV transfers are mostly wake-up latency: megabytes a second say more of them than 0.0
      // GB/s.
      const double mb_per_s = route.kv_bytes_moved() / route.kv_receive_ms() / 1e3;
      absl::StrAppend(&text, mb_per_s < 1000 ? absl::StrFormat(" at %.0f MB/s", mb_per_s)
                                             : absl::StrFormat(" at %.1f GB/s", mb_per_s / 1e3));
    }
    if (timing.prefill_ms() > 0) {
      absl::StrAppendFormat(&text, ", behind %.0f ms of prefill", timing.prefill_ms());
    }
    absl::StrAppend(&text, "\n");
  } else {
    absl::StrAppend(&text, "  KV moved     nothing\n");
  }
  if (route.attempts() > 1) absl::StrAppendFormat(&text, "  attempts     %d\n", route.attempts());
  return text;
}

}  // namespace tandem::cli
