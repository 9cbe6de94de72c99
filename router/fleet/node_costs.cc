// What a node's work is predicted to take: implements these members of Node and Fleet
// (router/fleet/fleet.h). A node says what its steps cost, so every figure may be anything: times
// are kept finite, and no time is longer than kUsMax.
#include <algorithm>
#include <cmath>

#include "router/fleet/fleet.h"

namespace tandem::router {
namespace {

constexpr double kUsMax = 3.6e9;  // an hour
// Of a link that nothing was measured of, a slow network.
constexpr double kLinkFixedUs = 200, kLinkBytesPerUs = 1000;
// What a fetch takes beside the bytes: three messages by way of the router.
constexpr double kFetchFixedUs = 1000;
// Of storage that has read nothing yet, a slow disk.
constexpr double kDiskFixedUs = 1000, kDiskBytesPerUs = 500;
// No storage reads faster, whatever a node says: what twelve channels of DDR5 pass on.
constexpr double kStorageBytesPerUsMax = 500'000;

double Bounded(double us) { return us > 0 ? std::min(us, kUsMax) : 0; }  // NaN is not above 0

}  // namespace

bool Node::knows_its_cost() const { return step_cost.has_value() && cost::Predicts(*step_cost); }

const cost::StepProfile& Node::profile() const {
  static const cost::StepProfile kUnknown = cost::DefaultStepProfile();
  if (knows_its_cost()) return *step_cost;
  return default_cost != nullptr ? *default_cost : kUnknown;
}

double Node::PromptUs(int64_t first_row, int64_t rows) const {
  if (rows <= 0) return 0;
  const cost::StepProfile& cost = profile();
  const int64_t steps = (rows - 1) / step_rows() + 1;
  const double us = cost.Predict({.prompt_rows = rows,
                                  .prompt_attended = rows * first_row + rows * (rows + 1) / 2,
                                  .sampled_rows = 1})
                        .us;
  return Bounded(us + static_cast<double>(steps - 1) * cost.step_us);
}

double Node::RowsUs(int64_t first_row, int64_t rows) const {
  if (rows <= 0) return 0;
  const cost::StepProfile& cost = profile();
  return Bounded(cost.Predict({.prompt_rows = rows,
                               .prompt_attended = rows * first_row + rows * (rows + 1) / 2})
                     .us -
                 cost.step_us);
}

double Node::HalfStepUs() const {
  if (role == v1::NODE_ROLE_DECODE) {
    // Sequences whose prompts it waits for are in no step.
    const int64_t running = load.sequences_running();
    return running > 0 ? GenerateUs(running, tokens_held()) / 2 : 0;
  }
  const int64_t rows = std::min<int64_t>(prefill_tokens_waiting(), step_rows());
  return PromptUs(0, rows) / 2;
}

double Node::GenerateUs(int64_t sequences, int64_t attended) const {
  return Bounded(profile()
                     .Predict({.generated_rows = sequences,
                               .generated_attended = attended,
                               .sampled_rows = sequences})
                     .us);
}

double Node::WaitUs(int64_t prompt_tokens, absl::Time now) const {
  // Reports count all routers' prompts, up to a heartbeat late. What exceeds this router's own is
  // taken to be others'. A row of a prompt attends to half of it, on average.
  const int64_t rows = std::max<int64_t>(0, load.prefill_tokens_waiting() - prefill_tokens_ahead);
  const double others = rows == 0
                            ? 0
                            : Bounded(profile()
                                          .Predict({.prompt_rows = rows,
                                                    .prompt_attended = rows * (prompt_tokens / 2)})
                                          .us);
  return Bounded(work.RemainingUs(now) + others);
}

absl::Duration Node::PredictedPrefillWait(int64_t prompt_tokens, absl::Time now) const {
  return knows_its_cost() ? absl::Microseconds(WaitUs(prompt_tokens, now)) : absl::ZeroDuration();
}

double Node::ReadUs(int64_t tokens) const {
  if (tokens <= 0) return 0;
  const double bytes = static_cast<double>(tokens) * kv_bytes_per_token;
  if (!storage_cost.has_value() || storage_cost->read.samples <= 0)
    return Bounded(kDiskFixedUs + bytes / kDiskBytesPerUs);
  return Bounded(std::max(storage_cost->read.PredictUs(bytes), bytes / kStorageBytesPerUsMax));
}

double Fleet::TransferUs(const Node& from, const Node& to, double bytes) const {
  if (!(bytes > 0)) return 0;
  // Two transfers tell a fixed part from a rate; one does not.
  constexpr int64_t kSamplesMin = 2;
  const auto link = to.links_in.find(from.slot);
  const cost::LinkCost& cost =
      link != to.links_in.end() && link->second.cost.samples() >= kSamplesMin ? link->second.cost
                                                                              : all_links_;
  if (cost.samples() < kSamplesMin) return Bounded(kLinkFixedUs + bytes / kLinkBytesPerUs);
  const double rate = cost.bytes_per_second() / 1e6;
  return Bounded(cost.fixed_us() + (rate > 0 ? bytes / rate : 0));
}

FetchTimes Fleet::Fetching(const Node& holder, const Node& to, int64_t first,
                           int64_t tokens) const {
  const double wire_us =
      TransferUs(holder, to, static_cast<double>(tokens) * to.kv_bytes_per_token);
  return {.fetch_us = Bounded(kFetchFixedUs + holder.HalfStepUs() + wire_us),
          .saved_us = to.RowsUs(first, tokens)};
}

}  // namespace tandem::router
