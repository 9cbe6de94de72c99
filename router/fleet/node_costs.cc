// What a node's work is predicted to take: implements these members of Node (router/fleet/node.h)
// and Fleet (router/fleet/fleet.h). A node says what its steps cost, so every figure may be
// anything: times are kept finite, and no time is longer than kPriceUsMax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/cost/fetch_time.h"
#include "common/cost/price_age.h"
#include "router/fleet/fleet.h"
#include "router/fleet/price_bounds.h"

namespace tandem::router {
namespace {

// Of a link without a measurement. Its rate is that of a quick one: a fetch that is tried tells the
// rate, and one that is not tells nothing.
constexpr double kLinkFixedUs = 200, kLinkBytesPerUs = 10'000;
// What a fetch takes beside the bytes: three messages by way of the router.
constexpr double kFetchFixedUs = 1000;
// A fetch that fails is no sample, so over a link that has too few samples fetches are small enough
// for a link that is so many times slower than the fleet's usual one, once that is known. Before,
// and after one that failed, they are what a slow link of 1 Gbit/s carries in a second. One block
// is fetched however large it is: without any fetch there would never be a sample.
constexpr double kUnknownLinkSlowness = 8;
constexpr int64_t kUsualLinkSamplesMin = 16;
constexpr double kUnknownLinkBytesMax = 125e6;
// Of storage that has read nothing yet, a slow disk, and host memory that is copied and checked by
// one slow processor.
constexpr double kDiskFixedUs = 1000, kDiskBytesPerUs = 500;
constexpr double kHostFixedUs = 100, kHostBytesPerUs = 1000;

// What tells dear nodes from cheap ones: a thousand rows of what nodes of this role compute.
double PriceUs(v1::NodeRole role, const cost::StepProfile& profile) {
  constexpr int64_t kRows = 1000;
  const cost::StepShape prompt = {.prompt_rows = kRows, .prompt_attended = kRows * kRows / 2};
  const cost::StepShape generated = {
      .generated_rows = kRows, .generated_attended = kRows * kRows, .sampled_rows = kRows};
  return profile.Predict(role == v1::NODE_ROLE_DECODE ? generated : prompt).us;
}

// Of two nodes of one host: memory at what MovingPace takes it to be, and a question to a creditor
// that has to be woken. A creditor of another host is asked over a network.
constexpr double kSameHostBytesPerUs = 4000, kSameHostRoundTripUs = 50;
constexpr double kRoundTripUs = kLinkFixedUs;
constexpr double kAskLayers = 32;  // as a model of 8 billion parameters has
// A link between two nodes of one host costs at most this part of one between hosts.
constexpr double kSameHostPart = 0.5;
constexpr double kNewWeight = 0.125;  // of a report, in what is usual

// Of a token's questions to a creditor.
double AskPriorUs(bool same_host) {
  return kAskLayers * (same_host ? kSameHostRoundTripUs : kRoundTripUs);
}

double MeasuredUs(const cost::LinkCost& cost, double bytes) {
  const double rate = cost.bytes_per_second() / 1e6;
  return BoundedUs(cost.fixed_us() + (rate > 0 ? bytes / rate : 0));
}

}  // namespace

bool Node::knows_its_cost() const { return step_cost.has_value() && cost::Predicts(*step_cost); }

const cost::StepProfile& Node::profile() const {
  static const cost::StepProfile kUnknown = cost::DefaultStepProfile();
  if (knows_its_cost()) return faded_step_cost.has_value() ? *faded_step_cost : *step_cost;
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
  return BoundedUs(us + static_cast<double>(steps - 1) * cost.step_us);
}

double Node::RowsUs(int64_t first_row, int64_t rows) const {
  if (rows <= 0) return 0;
  const cost::StepProfile& cost = profile();
  return BoundedUs(cost.Predict({.prompt_rows = rows,
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
  return BoundedUs(profile()
                       .Predict({.generated_rows = sequences,
                                 .generated_attended = attended,
                                 .sampled_rows = sequences})
                       .us);
}

absl::Time Node::RankOf(const request::Urgency& urgency, double compute_us, absl::Time now) const {
  return request::RankOf(queue_order, now, urgency, absl::Microseconds(compute_us));
}

double Node::WaitUs(int64_t prompt_tokens, absl::Time rank, absl::Time now) const {
  // Reports count all routers' prompts, up to a heartbeat late. What exceeds this router's own is
  // taken to be others'. A row of a prompt attends to half of it, on average.
  const int64_t rows = std::max<int64_t>(0, load.prefill_tokens_waiting() - prefill_tokens_ahead);
  const double others =
      rows == 0 ? 0
                : BoundedUs(profile()
                                .Predict({.prompt_rows = rows,
                                          .prompt_attended = rows * (prompt_tokens / 2)})
                                .us);
  // A step of prompts that come after it may run.
  const double running = work.prompts() > 0 && work.IsFirst(rank) ? HalfStepUs() : 0;
  return BoundedUs(work.AheadUs(rank, now) + running + others);
}

absl::Duration Node::PredictedPrefillWait(int64_t prompt_tokens, const request::Urgency& urgency,
                                          absl::Time now) const {
  if (!knows_its_cost()) return absl::ZeroDuration();
  const absl::Time rank = RankOf(urgency, PromptUs(0, prompt_tokens), now);
  return absl::Microseconds(WaitUs(prompt_tokens, rank, now));
}

double Node::ReadUs(const ReadTokens& tokens, absl::Time now) const {
  const auto tier_us = [&](int64_t count, const std::optional<cost::TierProfile>& cost,
                           absl::Time sampled, double fixed_us, double bytes_per_us) {
    if (count <= 0) return 0.0;
    const double bytes = static_cast<double>(count) * kv_bytes_per_token;
    const double prior = BoundedUs(fixed_us + bytes / bytes_per_us);
    if (!cost.has_value() || cost->read.samples <= 0) return prior;
    const double measured =
        BoundedUs(std::max(cost->read.PredictUs(bytes), bytes / kBytesPerUsMax));
    return cost::FadedPrice(measured, prior, sampled, now);
  };
  const cost::StorageProfile costs = storage_cost.value_or(cost::StorageProfile());
  return BoundedUs(
      tier_us(tokens.host, costs.host, host_read_sampled, kHostFixedUs, kHostBytesPerUs) +
      tier_us(tokens.disk, costs.disk, disk_read_sampled, kDiskFixedUs, kDiskBytesPerUs));
}

void Fleet::OnStepCost(Node& node, const cost::StepProfile& profile) {
  if (!node.step_cost.has_value() || node.step_cost->samples != profile.samples)
    node.step_sampled = now_;
  node.step_cost = profile;
  FadeStepCost(node);
  const NodeGroup group = GroupOf(node.role);
  if (group != kNoGroup && node.knows_its_cost()) default_costs_[group] = profile;
}

double Fleet::MedianPriceUs(v1::NodeRole role) {
  MedianPrice& median = median_prices_[GroupOf(role)];
  if (now_ - median.at < kMedianEvery) return median.us;
  // The lower one, so that the dear one of two nodes has the other's.
  std::vector<double> prices;
  for (const auto& [id, node] : by_id_)
    if (node->role == role && node->knows_its_cost())
      prices.push_back(PriceUs(role, *node->step_cost));
  const auto middle = prices.begin() + (std::ssize(prices) - 1) / 2;
  std::nth_element(prices.begin(), middle, prices.end());
  median = {*middle, now_};
  return median.us;
}

void Fleet::FadeStepCost(Node& node) {
  node.faded_step_cost.reset();
  if (!node.knows_its_cost() || GroupOf(node.role) == kNoGroup ||
      now_ - node.step_sampled <= cost::kPriceTrusted)
    return;
  const double price = PriceUs(node.role, *node.step_cost);
  const double faded = cost::FadedPrice(price, MedianPriceUs(node.role), node.step_sampled, now_);
  if (faded >= price) return;
  cost::StepProfile& profile = node.faded_step_cost.emplace(*node.step_cost);
  for (double cost::StepProfile::*part :
       {&cost::StepProfile::step_us, &cost::StepProfile::prompt_row_us,
        &cost::StepProfile::prompt_attended_us, &cost::StepProfile::generated_row_us,
        &cost::StepProfile::generated_attended_us, &cost::StepProfile::sampled_row_us})
    profile.*part *= faded / price;
}

void Fleet::OnStorageCost(Node& node, const cost::StorageProfile& profile) {
  const cost::StorageProfile before = node.storage_cost.value_or(cost::StorageProfile());
  const auto is_new = [](const std::optional<cost::TierProfile>& was,
                         const std::optional<cost::TierProfile>& is) {
    return is.has_value() && (!was.has_value() || was->read.samples != is->read.samples);
  };
  if (is_new(before.host, profile.host)) node.host_read_sampled = now_;
  if (is_new(before.disk, profile.disk)) node.disk_read_sampled = now_;
  node.storage_cost = profile;
}

double Fleet::TransferUs(const Node& from, const Node& to, double bytes) const {
  if (!(bytes > 0)) return 0;
  const auto link = to.links_in.find(from.slot);
  if (link == to.links_in.end() || link->second.cost.samples() < kLinkSamplesMin)
    return UsualTransferUs(bytes, /*same_host=*/false);
  const NodePair& pair = link->second;
  const double price = MeasuredUs(pair.cost, bytes);
  if (now_ - pair.sampled <= cost::kPriceTrusted) return price;
  return cost::FadedPrice(price, UsualTransferUs(bytes, /*same_host=*/false), pair.sampled, now_);
}

double Fleet::UsualTransferUs(double bytes, bool same_host) const {
  if (!(bytes > 0)) return 0;
  double us = BoundedUs(kLinkFixedUs + bytes / kLinkBytesPerUs);
  if (all_links_.samples() >= kLinkSamplesMin)
    us = cost::FadedPrice(MeasuredUs(all_links_, bytes), us, all_links_sampled_, now_);
  return same_host ? std::min(us * kSameHostPart, bytes / kSameHostBytesPerUs) : us;
}

double Fleet::UsualAskUs(bool same_host) const {
  const auto usual = [&](bool host) {
    return usual_ask_us_[host] > 0 ? usual_ask_us_[host] : AskPriorUs(host);
  };
  return same_host ? std::min(usual(true), usual(false) * kSameHostPart) : usual(false);
}

void Fleet::OnCreditorLink(Node& debtor, const NodeId& creditor, Incarnation incarnation,
                           const cost::CreditorProfile& cost) {
  const auto found = by_id_.find(creditor);
  if (found == by_id_.end() || found->second->incarnation != incarnation ||
      found->second == &debtor) {
    return;
  }
  const Node& other = *found->second;
  std::map<NodeSlot, CreditorLink>& links = debtor.creditor_links;
  if (!links.contains(other.slot) && links.size() >= kDebtsMax) {
    links.erase(std::min_element(links.begin(), links.end(), [](const auto& a, const auto& b) {
      return a.second.reported < b.second.reported;
    }));
  }
  CreditorLink& link = links[other.slot];
  link.reported = now_;
  if (link.cost.blocks.samples != cost.blocks.samples) link.blocks_sampled = now_;
  const bool has_asked = cost.AskUs() > 0 && link.cost.AskUs() != cost.AskUs();
  link.cost = cost;
  if (!has_asked) return;
  link.asked = now_;
  // One report moves what is usual by a little only, whatever it says.
  const bool same_host = other.host == debtor.host;
  double& usual = usual_ask_us_[same_host];
  if (usual == 0) usual = AskPriorUs(same_host);
  usual += kNewWeight * (std::clamp(cost.AskUs(), usual / 2, usual * 2) - usual);
}

void Fleet::FetchFailed(NodeKey from, NodeKey to) {
  const Node* sender = Find(from);
  Node* receiver = Find(to);
  if (sender != nullptr && receiver != nullptr)
    receiver->failures_in[sender->id].fetch_failed = true;
}

double Fleet::FetchedBytesMax(const Node& holder, const Node& to, double limit_us) const {
  const auto link = to.links_in.find(holder.slot);
  if (link != to.links_in.end() && link->second.cost.samples() >= kLinkSamplesMin)
    return std::numeric_limits<double>::infinity();
  const auto failures = to.failures_in.find(holder.id);
  const bool failed = failures != to.failures_in.end() && failures->second.fetch_failed;
  if (failed || all_links_.samples() < kUsualLinkSamplesMin) return kUnknownLinkBytesMax;
  const double usual_bytes_per_us =
      kUnknownLinkBytesMax / UsualTransferUs(kUnknownLinkBytesMax, false);
  return std::max(kUnknownLinkBytesMax, usual_bytes_per_us * limit_us / kUnknownLinkSlowness);
}

FetchTimes Fleet::Fetching(const Node& holder, const Node& to, int64_t first, int64_t tokens,
                           const ReadTokens& stored) const {
  const double limit_us = cost::kFetchAimedShare * absl::ToDoubleMicroseconds(cost::kFetchTimeMax);
  const auto bytes_of = [&](int64_t count) {
    return static_cast<double>(count) * to.kv_bytes_per_token;
  };
  const auto fetch_us = [&](int64_t count) {
    // What is stored comes last, and is left out first.
    const int64_t read = std::min(stored.total(), tokens) - (tokens - count);
    return BoundedUs(kFetchFixedUs + holder.HalfStepUs() + holder.ReadUs(stored.Part(read), now_) +
                     TransferUs(holder, to, bytes_of(count)));
  };
  const int64_t block_tokens = std::max<int64_t>(1, to.block_tokens);
  const double bytes_max = FetchedBytesMax(holder, to, limit_us);
  const auto in_time = [&](int64_t count) {
    return (count <= block_tokens || bytes_of(count) <= bytes_max) && fetch_us(count) <= limit_us;
  };
  int64_t count = tokens;
  if (!in_time(count)) {
    int64_t fitting = 0, too_many = (tokens - 1) / block_tokens + 1;  // blocks
    while (too_many - fitting > 1) {
      const int64_t middle = fitting + (too_many - fitting) / 2;
      (in_time(middle * block_tokens) ? fitting : too_many) = middle;
    }
    count = fitting * block_tokens;
  }
  return {.tokens = count, .fetch_us = fetch_us(count), .saved_us = to.RowsUs(first, count)};
}

}  // namespace tandem::router
