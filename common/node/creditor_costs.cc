#include "common/node/creditor_costs.h"

#include <algorithm>

#include "common/rpc/cost_convert.h"

namespace tandem::node {

CreditorCosts::Entry& CreditorCosts::Changed(const lending::DebtorId& creditor) {
  if (creditors_.size() >= kCreditorsMax && !creditors_.contains(creditor.node)) {
    creditors_.erase(std::min_element(
        creditors_.begin(), creditors_.end(),
        [](const auto& a, const auto& b) { return a.second.changed < b.second.changed; }));
  }
  Entry& entry = creditors_[creditor.node];
  if (entry.incarnation != creditor.incarnation) entry = {.incarnation = creditor.incarnation};
  entry.changed = ++version_;
  return entry;
}

void CreditorCosts::OnSent(const lending::DebtorId& creditor, int64_t bytes, absl::Duration time) {
  if (bytes <= 0 || time <= absl::ZeroDuration()) return;
  Changed(creditor).blocks.Observe(bytes, absl::ToDoubleMicroseconds(time));
}

void CreditorCosts::OnRoundTrip(const lending::DebtorId& creditor, absl::Duration round_trip) {
  const double us = absl::ToDoubleMicroseconds(round_trip);
  if (!(us > 0)) return;
  double& average = Changed(creditor).round_trip_us;
  average = average > 0 ? average + kNewWeight * (us - average) : us;
}

google::protobuf::RepeatedPtrField<v1::CreditorLink> CreditorCosts::Links(int32_t layers) const {
  google::protobuf::RepeatedPtrField<v1::CreditorLink> links;
  for (const auto& [node, entry] : creditors_) {
    v1::CreditorLink& link = *links.Add();
    link = rpc::ToWire(cost::CreditorProfile{
        .blocks = entry.blocks.profile(), .round_trip_us = entry.round_trip_us, .layers = layers});
    link.set_creditor_node_id(node.value());
    link.set_creditor_incarnation(entry.incarnation.value());
  }
  return links;
}

void AddTo(const lending::CreditorLinksCounters& links, v1::NodeCounters& counters) {
  counters.set_lending_questions(links.questions);
  counters.set_lending_questions_failed(links.failures);
  counters.set_lending_bytes_sent(links.bytes_out);
  counters.set_lending_bytes_received(links.bytes_in);
  counters.set_lending_round_trip_s(absl::ToDoubleSeconds(links.round_trips));
  counters.set_lending_awaited_s(absl::ToDoubleSeconds(links.waited));
}

}  // namespace tandem::node
