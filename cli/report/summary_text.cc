#include "cli/report/summary_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cli/report/source_text.h"

namespace tandem::cli {

std::string FormatSummary(const v1::Finished& finished) {
  const v1::Route& route = finished.route();
  const v1::Usage& usage = finished.usage();
  const v1::Timing& timing = finished.timing();
  std::string text;
  if (route.prefill_node().empty()) {
    absl::StrAppend(&text, "  prefill      on the decode node\n");
  } else {
    absl::StrAppend(&text, "  prefill      ", route.prefill_node(), " (",
                    SourceText(route.prefill_tokens()), ")\n");
  }
  absl::StrAppend(&text, "  decode       ", route.decode_node(), " (",
                  SourceText(route.decode_tokens()), ")\n");
  absl::StrAppendFormat(&text, "  tokens       %d prompt (%d cached), %d output\n",
                        usage.prompt_tokens(), usage.cached_tokens(), usage.output_tokens());
  if (finished.reason() != v1::FINISH_REASON_UNSPECIFIED)
    absl::StrAppend(&text, "  finished     ", ReasonText(finished.reason()), "\n");
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

std::string CutOffNote(const v1::Finished& finished) {
  if (finished.reason() != v1::FINISH_REASON_LENGTH) return "";
  return absl::StrCat("[cut off after ", finished.usage().output_tokens(),
                      " tokens: --max-tokens and the model's context are the limits]");
}

std::string ReasonText(v1::FinishReason reason) {
  const std::string name = v1::FinishReason_Name(reason);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "FINISH_REASON_"));
}

}  // namespace tandem::cli
