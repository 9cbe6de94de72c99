// What `tandem bench kv` prints: implements FormatTable and FormatJson (cli/bench/kv_bench.h).
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "cli/bench/kv_bench.h"

namespace tandem::cli {
namespace {

struct Headline {
  KvBenchResult shm, tcp, socket;
};

Headline HeadlineOf(const std::vector<KvBenchResult>& results) {
  Headline headline;
  for (const KvBenchResult& result : results) {
    if (result.both || absl::StrContains(result.transport, '+')) continue;
    KvBenchResult& best = result.transport == "tcp"      ? headline.tcp
                          : result.transport == "socket" ? headline.socket
                                                         : headline.shm;
    const auto rank = [](const KvBenchResult& r) {
      return std::tuple(r.gbps > 0, r.block_bytes, -r.streams, r.gbps);
    };
    if (rank(result) > rank(best)) best = result;
  }
  return headline;
}

}  // namespace

std::string FormatTable(const KvBenchReport& report) {
  std::string text =
      absl::StrFormat("%-13s %12s %8s %10s %9s %7s %13s %17s %20s %14s %9s\n", "TRANSPORT",
                      "BLOCK BYTES", "STREAMS", "DIRECTIONS", "GB/S", "RATIO", "MEMCPY GB/S",
                      "SEND CPU MS/MB", "RECEIVE CPU MS/MB", "PUSH TO ACK US", "FAIRNESS");
  for (const KvBenchResult& result : report.results) {
    absl::StrAppendFormat(
        &text, "%-13s %12d %8d %10s %9.2f %6.0f%% %13.2f %17.3f %20.3f %14.1f %9.2f\n",
        result.transport, result.block_bytes, result.streams, result.both ? "both" : "one",
        result.gbps, 100 * result.gbps / result.memcpy_gbps, result.memcpy_gbps,
        result.send_cpu_ms_per_mb, result.receive_cpu_ms_per_mb, result.push_to_ack_us,
        result.fairness);
  }
  for (const KvPaced& paced : report.paced) {
    absl::StrAppendFormat(&text,
                          "paced over %s, 8 MiB beside 16 ms of prefill: %.2f ms on the wire, "
                          "%.1f%% of it hidden; beyond both %.3f ms p50, %.3f ms p99\n",
                          paced.transport, paced.wire_ms, 100 * paced.hidden_part,
                          paced.beyond_ms_p50, paced.beyond_ms_p99);
  }
  absl::StrAppendFormat(&text,
                        "a call between engine threads: %.2f us while both spin, %.1f us when both "
                        "sleep\n",
                        report.round_trip_us, report.sleep_round_trip_us);
  if (report.ucx_am_gbps > 0 || report.ucx_put_gbps > 0) {
    absl::StrAppendFormat(&text, "ucx_perftest over TCP: am %.2f GB/s, put %.2f GB/s\n",
                          report.ucx_am_gbps, report.ucx_put_gbps);
  }
  if (!report.ucx_note.empty()) {
    absl::StrAppendFormat(&text, "ucx_perftest: %s\n", report.ucx_note);
  }
  return text;
}

std::string FormatJson(const KvBenchReport& report) {
  const Headline best = HeadlineOf(report.results);
  std::string text = absl::StrFormat(
      "{\"memcpy_gbps\": %.6g, \"shm_gbps\": %.6g, \"tcp_gbps\": %.6g, \"socket_gbps\": %.6g, "
      "\"round_trip_us\": %.6g, \"sleep_round_trip_us\": %.6g, \"ucx_am_gbps\": %.6g, "
      "\"ucx_put_gbps\": %.6g, \"results\": [",
      std::max({best.shm.memcpy_gbps, best.tcp.memcpy_gbps, best.socket.memcpy_gbps}),
      best.shm.gbps, best.tcp.gbps, best.socket.gbps, report.round_trip_us,
      report.sleep_round_trip_us, report.ucx_am_gbps, report.ucx_put_gbps);
  const char* separator = "";
  for (const KvBenchResult& result : report.results) {
    absl::StrAppendFormat(
        &text,
        "%s\n  {\"transport\": \"%s\", \"block_bytes\": %d, \"streams\": %d, \"directions\": "
        "\"%s\", \"gbps\": %.6g, \"memcpy_gbps\": %.6g, \"send_cpu_ms_per_mb\": %.6g, "
        "\"receive_cpu_ms_per_mb\": %.6g, \"push_to_ack_us\": %.6g, \"fairness\": %.6g}",
        separator, result.transport, result.block_bytes, result.streams,
        result.both ? "both" : "one", result.gbps, result.memcpy_gbps, result.send_cpu_ms_per_mb,
        result.receive_cpu_ms_per_mb, result.push_to_ack_us, result.fairness);
    separator = ",";
  }
  text += "\n], \"paced\": [";
  separator = "";
  for (const KvPaced& paced : report.paced) {
    absl::StrAppendFormat(&text,
                          "%s\n  {\"transport\": \"%s\", \"wire_ms\": %.6g, \"hidden_part\": %.6g, "
                          "\"beyond_ms_p50\": %.6g, \"beyond_ms_p99\": %.6g}",
                          separator, paced.transport, paced.wire_ms, paced.hidden_part,
                          paced.beyond_ms_p50, paced.beyond_ms_p99);
    separator = ",";
  }
  return text + "\n]}\n";
}

}  // namespace tandem::cli
