#include "common/transfer/ucx_address.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/keyed_tag.h"

namespace tandem::transfer {
namespace {

constexpr absl::string_view kMagic = "TKVA3";
constexpr char kAddressPurpose[] = "kv address";
constexpr size_t kAddressBytesMax = 16 << 10;
constexpr uint64_t kTakesTcp = 1;
constexpr uint64_t kTakesShm = 2;

void AppendNumber(std::string& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t TakeNumber(absl::string_view& bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  bytes.remove_prefix(8);
  return value;
}

}  // namespace

// magic | origin | takes | host length | shm length | host | shm | worker | tag over all before
std::string UcxAddress::Serialize(absl::string_view fleet_secret) const {
  std::string bytes(kMagic);
  AppendNumber(bytes, origin);
  AppendNumber(bytes, (takes_tcp ? kTakesTcp : 0) | (takes_shm ? kTakesShm : 0));
  AppendNumber(bytes, host.size());
  AppendNumber(bytes, shm_address.size());
  absl::StrAppend(&bytes, host, shm_address, worker_address);
  return absl::StrCat(bytes, KeyedTag(fleet_secret, kAddressPurpose, bytes));
}

absl::StatusOr<UcxAddress> UcxAddress::Parse(absl::string_view bytes,
                                             absl::string_view fleet_secret) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV transport address of ", bytes.size(), " bytes: ", why));
  };
  constexpr size_t kFixedBytes = 4 * sizeof(uint64_t) + kKeyedTagBytes;
  if (bytes.size() <= kMagic.size() + kFixedBytes) return refuse("too short");
  if (bytes.size() > kAddressBytesMax) return refuse("too long");
  if (!absl::StartsWith(bytes, kMagic)) return refuse("not a UCX transport's of this version");
  const absl::string_view body = bytes.substr(0, bytes.size() - kKeyedTagBytes);
  if (!IsKeyedTag(bytes.substr(body.size()), fleet_secret, kAddressPurpose, body)) {
    return refuse("damaged, or of a node with another fleet-secret-file");
  }
  absl::string_view rest = body.substr(kMagic.size());
  UcxAddress address;
  address.origin = TakeNumber(rest);
  const uint64_t takes = TakeNumber(rest);
  address.takes_tcp = (takes & kTakesTcp) != 0;
  address.takes_shm = (takes & kTakesShm) != 0;
  const uint64_t host_bytes = TakeNumber(rest);
  const uint64_t lane_bytes = TakeNumber(rest);
  if (host_bytes >= rest.size()) return refuse("host name longer than the address");
  address.host = std::string(rest.substr(0, host_bytes));
  rest.remove_prefix(host_bytes);
  if (lane_bytes >= rest.size()) return refuse("shm address longer than the address");
  address.shm_address = std::string(rest.substr(0, lane_bytes));
  address.worker_address = std::string(rest.substr(lane_bytes));
  return address;
}

}  // namespace tandem::transfer
