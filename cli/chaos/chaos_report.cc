#include "cli/chaos/chaos_report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/statistics.h"

namespace tandem::cli {
namespace {

// A fault has effects for this long after its end, while the restarted process loads and joins.
constexpr absl::Duration kAftermath = absl::Seconds(2);
constexpr size_t kSlowestShown = 10;

double MedianPauseMs(const std::vector<ChaosRequest>& records) {
  std::vector<double> pauses;
  for (const ChaosRequest& record : records)
    pauses.push_back(absl::ToDoubleMilliseconds(record.pause()));
  return Describe(std::move(pauses)).p50;
}

const ChaosFault* CauseOf(const ChaosRequest& record, const std::vector<ChaosFault>& faults) {
  const ChaosFault* nearest = nullptr;
  for (const ChaosFault& fault : faults) {
    if (fault.at > record.pause_to || fault.end() + kAftermath < record.pause_from) continue;
    const auto distance = [&](const ChaosFault& f) {
      return absl::AbsDuration(f.at - record.pause_from);
    };
    if (nearest == nullptr || distance(fault) < distance(*nearest)) nearest = &fault;
  }
  return nearest;
}

std::string RecoveryLine(const ChaosRequest& record, const std::string& group, double added_ms) {
  return absl::StrFormat(
      "%s: %.1f ms, %s, nothing came from %.3f s to %.3f s, asked %d times, "
      "placed %d times",
      record.id, added_ms, group, absl::ToDoubleSeconds(record.pause_from),
      absl::ToDoubleSeconds(record.pause_to), record.calls, record.placements);
}

}  // namespace

std::string WhyNotCalm(const ChaosRequest& request) {
  if (request.end != ChaosRequest::End::kWhole) return request.what;
  if (request.first_failure.empty()) return "";
  return absl::StrCat("it was asked again after ", request.first_failure);
}

ChaosReport Summarize(const ChaosFindings& findings) {
  ChaosReport report;
  report.seed = findings.seed;
  report.seconds = absl::ToDoubleSeconds(findings.ran);
  report.namespaces = findings.namespaces;
  report.leaks = findings.leaks;
  report.crashes = findings.crashes;
  report.calm_pause_ms = MedianPauseMs(findings.calm);
  for (const ChaosFault& fault : findings.faults)
    ++report.groups[GroupOf(fault, findings.topology)].faults;
  std::map<std::string, std::vector<double>> added;
  std::vector<std::pair<double, std::string>> recovered;
  for (const ChaosRequest& record : findings.requests) {
    ++report.requests;
    report.tokens += record.tokens;
    report.asked_again += record.calls - 1;
    const std::string said = absl::StrCat(record.id, ": ", record.what);
    if (record.end == ChaosRequest::End::kWhole) ++report.whole;
    if (record.end == ChaosRequest::End::kCancelled) ++report.cancelled;
    if (record.end == ChaosRequest::End::kMismatch) report.mismatches.push_back(said);
    if (record.end == ChaosRequest::End::kGivenUp) report.given_up.push_back(said);
    if (record.end == ChaosRequest::End::kWhole && record.lent_tokens > 0) {
      ++report.lent;
      report.lent_split += record.split ? 1 : 0;
      report.lent_recovered += record.recovered() ? 1 : 0;
    }
    if (!record.recovered()) continue;
    ++report.recovered;
    const ChaosFault* cause = CauseOf(record, findings.faults);
    const std::string group = cause == nullptr ? "unknown" : GroupOf(*cause, findings.topology);
    const double added_ms =
        std::max(0.0, absl::ToDoubleMilliseconds(record.pause()) - report.calm_pause_ms);
    added[group].push_back(added_ms);
    recovered.emplace_back(added_ms, RecoveryLine(record, group, added_ms));
  }
  std::sort(recovered.begin(), recovered.end(), std::greater<>());
  for (size_t i = 0; i < std::min(recovered.size(), kSlowestShown); ++i)
    report.slowest.push_back(recovered[i].second);
  for (const auto& [group, values] : added) {
    const Distribution described = Describe(values);
    report.groups[group].added = {.count = described.count,
                                  .p50_ms = described.p50,
                                  .p99_ms = described.p99,
                                  .max_ms = described.max};
  }
  return report;
}

std::string ToTable(const ChaosReport& report) {
  std::string text = absl::StrFormat(
      "\nseed %d, %.0f s, %s\n%d requests, %d tokens: %d whole, %d cancelled by their clients, %d "
      "recovered; asked again %d times\nKV lent: %d requests, %d of them with split prompts, %d "
      "recovered\nlongest pause of an undisturbed request, median: %.1f "
      "ms\n\n"
      "%-20s %7s %10s %29s\n%-20s %7s %10s %9s %9s %9s\n",
      report.seed, report.seconds,
      report.namespaces ? "each process in a network namespace of its own"
                        : "on loopback, without faults of the network",
      report.requests, report.tokens, report.whole, report.cancelled, report.recovered,
      report.asked_again, report.lent, report.lent_split, report.lent_recovered,
      report.calm_pause_ms, "", "", "", "added by recovery, ms", "FAULT", "TIMES", "RECOVERED",
      "p50", "p99", "max");
  for (const auto& [name, group] : report.groups) {
    absl::StrAppendFormat(&text, "%-20s %7d %10d", name, group.faults, group.added.count);
    if (group.added.count > 0)
      absl::StrAppendFormat(&text, " %9.1f %9.1f %9.1f", group.added.p50_ms, group.added.p99_ms,
                            group.added.max_ms);
    absl::StrAppend(&text, "\n");
  }
  const auto list = [&](const char* what, const std::vector<std::string>& entries) {
    constexpr size_t kShownMax = 20;
    absl::StrAppendFormat(&text, "%-14s %d\n", what, entries.size());
    for (size_t i = 0; i < std::min(entries.size(), kShownMax); ++i)
      absl::StrAppend(&text, "  ", entries[i], "\n");
  };
  absl::StrAppend(&text, "\n");
  list("mismatches", report.mismatches);
  list("given up", report.given_up);
  list("leaks", report.leaks);
  list("crashes", report.crashes);
  list("slowest", report.slowest);
  return text;
}

std::string ToJson(const ChaosReport& report) {
  nlohmann::ordered_json json = {{"seed", report.seed},
                                 {"seconds", report.seconds},
                                 {"namespaces", report.namespaces},
                                 {"requests", report.requests},
                                 {"tokens", report.tokens},
                                 {"whole", report.whole},
                                 {"cancelled", report.cancelled},
                                 {"recovered", report.recovered},
                                 {"asked_again", report.asked_again},
                                 {"lent", report.lent},
                                 {"lent_split", report.lent_split},
                                 {"lent_recovered", report.lent_recovered},
                                 {"calm_pause_ms", report.calm_pause_ms},
                                 {"violations", report.violations()}};
  json["faults"] = nlohmann::ordered_json::object();
  for (const auto& [name, group] : report.groups)
    json["faults"][name] = {{"times", group.faults},
                            {"recovered", group.added.count},
                            {"added_ms_p50", group.added.p50_ms},
                            {"added_ms_p99", group.added.p99_ms},
                            {"added_ms_max", group.added.max_ms}};
  json["mismatches"] = report.mismatches;
  json["given_up"] = report.given_up;
  json["leaks"] = report.leaks;
  json["crashes"] = report.crashes;
  json["slowest"] = report.slowest;
  // Clients' texts may contain any byte.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::cli
