// What nodes do each second, from the totals in a router's answers. Nodes report their totals about
// once a second (--heartbeat-interval), so that two answers may hold the same report, or be two
// reports apart. A rate is therefore one between reports: those that changed a total in the last
// kWindow. It stands until a total changes again, for kStandsFor at most.
// Thread safety: none; a value.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

class NodeRates {
 public:
  // Each second.
  struct Rate {
    double generated = 0;  // tokens
    double prompt = 0;     // tokens of prompts that the node computed
    double kv_bytes = 0;   // sent
  };
  static constexpr absl::Duration kReportEvery = absl::Seconds(1);  // as nodes do by default
  static constexpr absl::Duration kWindow = absl::Seconds(5);
  static constexpr absl::Duration kStandsFor = absl::Milliseconds(2500);

  // Takes an answer that came `at`. Nodes that it does not name are forgotten.
  void Add(const v1::GetStatusResponse& status, absl::Time at);
  // nullopt for a node that one answer alone has named, or that has begun anew since.
  std::optional<Rate> Of(const std::string& node_id) const;
  // Of all nodes together.
  Rate Sum() const;

 private:
  struct Totals {
    int64_t generated = 0, prompt = 0, kv_bytes = 0;
    friend bool operator==(const Totals&, const Totals&) = default;
  };
  struct Report {
    absl::Time at;  // of the first answer that had these totals
    Totals totals;
    // The answer before had others. Else the report may have come any time before `at`.
    bool seen_to_come = true;
  };
  struct Node {
    uint64_t incarnation = 0;
    absl::Time seen;  // in an answer, last
    bool has_rate = false;
    // Whose totals differ, the oldest first. Bound: the answers of kWindow, and one.
    std::deque<Report> reports;
    Rate rate;
  };

  static void Add(const Totals& totals, absl::Time at, Node& node);

  // By id. Bound: the nodes of an answer.
  absl::flat_hash_map<std::string, Node> nodes_;
};

}  // namespace tandem::cli
