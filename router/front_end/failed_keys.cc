#include "router/front_end/failed_keys.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/rpc/retry_after.h"

namespace tandem::router {
namespace {

// The wait after `beyond` wrong keys more than are free: doubles until it is the longest.
absl::Duration WaitAfter(int64_t beyond) {
  absl::Duration wait = FailedKeys::kFirstWait;
  for (int64_t i = 1; i < beyond && wait < FailedKeys::kLongestWait; ++i) wait *= 2;
  return std::min(wait, FailedKeys::kLongestWait);
}

}  // namespace

absl::Status FailedKeys::MayTry(absl::string_view source, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(source);
  if (found == by_name_.end() || now >= found->second->may_try_at) return absl::OkStatus();
  const absl::Duration wait = found->second->may_try_at - now;
  return rpc::WithRetryAfter(
      absl::ResourceExhaustedError(
          absl::StrCat("authorization: ", found->second->failures, " wrong API keys in a row from ",
                       source, "; the next try is possible in ", absl::FormatDuration(wait))),
      absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))));
}

void FailedKeys::OnWrongKey(absl::string_view source, absl::Time now) {
  if (tries_ == 0) return;
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(source);
  if (found != by_name_.end()) {
    sources_.splice(sources_.begin(), sources_, found->second);
  } else {
    if (sources_.size() == kSourcesMax) {
      by_name_.erase(sources_.back().name);
      sources_.pop_back();
    }
    sources_.push_front({.name = std::string(source)});
    by_name_.emplace(source, sources_.begin());
  }
  Source& failed = sources_.front();
  ++failed.failures;
  if (failed.failures > tries_) failed.may_try_at = now + WaitAfter(failed.failures - tries_);
}

void FailedKeys::OnRightKey(absl::string_view source) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(source);
  if (found == by_name_.end()) return;
  sources_.erase(found->second);
  by_name_.erase(found);
}

std::string SourceOfAddress(const std::string& address) {
  in6_addr bytes = {};
  if (inet_pton(AF_INET6, address.c_str(), &bytes) != 1) return address;
  char text[INET6_ADDRSTRLEN] = {};
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) {  // an IPv4 client of a socket that takes both
    return inet_ntop(AF_INET, bytes.s6_addr + 12, text, sizeof(text));
  }
  std::memset(bytes.s6_addr + 8, 0, 8);
  return absl::StrCat(inet_ntop(AF_INET6, &bytes, text, sizeof(text)), "/64");
}

std::string SourceOfGrpcPeer(absl::string_view peer) {
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  absl::string_view address = plain;
  if (!absl::ConsumePrefix(&address, "ipv4:") && !absl::ConsumePrefix(&address, "ipv6:")) {
    return plain;
  }
  address = address.substr(0, address.rfind(':'));
  absl::ConsumePrefix(&address, "[");
  absl::ConsumeSuffix(&address, "]");
  return SourceOfAddress(std::string(address));
}

}  // namespace tandem::router
