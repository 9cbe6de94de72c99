#include "router/fleet/loan_price.h"

#include <algorithm>

#include "common/cost/price_age.h"
#include "router/fleet/price_bounds.h"

namespace tandem::router {
LoanPrice::LoanPrice(const Fleet& fleet, const Node& debtor, int64_t tokens)
    : fleet_(fleet),
      debtor_(debtor),
      tokens_(tokens),
      other_host_{
          .sent_us = fleet.UsualTransferUs(static_cast<double>(tokens) * debtor.kv_bytes_per_token,
                                           /*same_host=*/false) /
                     static_cast<double>(tokens),
          .asked_us = fleet.UsualAskUs(/*same_host=*/false)},
      same_host_{
          .sent_us = fleet.UsualTransferUs(static_cast<double>(tokens) * debtor.kv_bytes_per_token,
                                           /*same_host=*/true) /
                     static_cast<double>(tokens),
          .asked_us = fleet.UsualAskUs(/*same_host=*/true)} {}

double LoanPrice::Us(const Node& creditor, int64_t tokens_sent) const {
  const Usual& usual = creditor.host == debtor_.host ? same_host_ : other_host_;
  double sent_us = usual.sent_us * static_cast<double>(tokens_sent);
  double asked_us = usual.asked_us * static_cast<double>(tokens_);
  const double bytes = static_cast<double>(tokens_sent) * debtor_.kv_bytes_per_token;
  const auto link = debtor_.creditor_links.find(creditor.slot);
  const bool is_measured = link != debtor_.creditor_links.end();
  if (is_measured && link->second.cost.blocks.samples >= kLinkSamplesMin) {
    const double measured_us =
        BoundedUs(std::max(link->second.cost.blocks.PredictUs(bytes), bytes / kBytesPerUsMax));
    sent_us = cost::FadedPrice(measured_us, sent_us, link->second.blocks_sampled, fleet_.now());
  } else if (const auto pair = creditor.links_in.find(debtor_.slot);
             pair != creditor.links_in.end() && pair->second.cost.samples() >= kLinkSamplesMin) {
    sent_us = fleet_.TransferUs(debtor_, creditor, bytes);  // its prompts' KV went there
  }
  if (is_measured && link->second.cost.round_trip_us > 0) {
    const double measured_us = BoundedUs(link->second.cost.AskUs() * static_cast<double>(tokens_));
    asked_us = cost::FadedPrice(measured_us, asked_us, link->second.asked, fleet_.now());
  }
  return BoundedUs(sent_us + asked_us);
}

}  // namespace tandem::router
