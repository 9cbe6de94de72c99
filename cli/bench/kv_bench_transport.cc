#include "cli/bench/kv_bench_transport.h"

#include <utility>

#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/transfer/mapped_transport.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/ucx_transport.h"

namespace tandem::cli {
namespace {

constexpr char kBenchHost[] = "bench";
// Both processes are of one run; it keeps nothing secret.
constexpr char kSecret[] = "bench";

struct Parts {
  std::string ucx;
  bool mapped = false, sealed = true, encrypted = false;
};

Parts PartsOf(absl::string_view name) {
  Parts parts;
  parts.mapped = absl::ConsumePrefix(&name, "mapped");
  parts.encrypted = absl::ConsumeSuffix(&name, "+encrypted");
  parts.sealed = !absl::ConsumeSuffix(&name, "+unsealed");
  parts.ucx = parts.mapped ? "shm" : std::string(name);
  return parts;
}

}  // namespace

bool IsKvBenchTransport(const std::string& name) {
  const Parts parts = PartsOf(name);
  if (parts.encrypted && !parts.sealed) return false;
  return name == "mapped" || (!parts.mapped && (parts.ucx == "shm" || parts.ucx == "tcp"));
}

absl::StatusOr<std::unique_ptr<transfer::KvTransport>> NewKvBenchTransport(
    const std::string& name, const kv::BlockArena& arena) {
  const Parts parts = PartsOf(name);
  ASSIGN_OR_RETURN(std::unique_ptr<transfer::KvTransport> transport,
                   transfer::NewUcxTransport(
                       {.transports = parts.ucx, .host = kBenchHost, .fleet_secret = kSecret}));
  if (parts.sealed) {
    transport = transfer::NewSealedTransport({.fleet_secret = kSecret, .encrypts = parts.encrypted},
                                             std::move(transport));
  }
  if (parts.mapped) {
    transport =
        transfer::NewMappedTransport({.fleet_secret = kSecret}, arena, std::move(transport));
  }
  return transport;
}

}  // namespace tandem::cli
