#include "common/transfer/ucx_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

constexpr absl::string_view kAddressMagic = "TKVA1";
constexpr size_t kAddressBytesMax = 16 << 10;

void AppendNumber(std::string& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t TakeNumber(absl::string_view& bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  bytes.remove_prefix(8);
  return value;
}

// Settings that the protocol relies on; keys without UCX's "UCX_" prefix.
std::vector<std::pair<std::string, std::string>> Settings(const std::string& tls) {
  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", tls},
      // A killed process is seen after this time on shared memory (TCP sees it at once).
      {"KEEPALIVE_INTERVAL", "500ms"},
      // Rendezvous by active messages: no peer writes into this process by itself, not even late.
      {"RNDV_SCHEME", "am"},
  };
  // With peer error handling UCX refuses shared memory unless told otherwise, and falls to TCP
  // between processes of one host. In the environment this is UCX_POSIX_ERROR_HANDLING;
  // ucp_config_modify knows it by the key that shared memory transports have in common.
  if (absl::StrContains(tls, "posix")) settings.emplace_back("MM_ERROR_HANDLING", "y");
  return settings;
}

}  // namespace

absl::Status UcxError(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

// magic | origin | host length | host | worker address | XXH3-64 of all before
std::string UcxAddress::Serialize() const {
  std::string bytes(kAddressMagic);
  AppendNumber(bytes, origin);
  AppendNumber(bytes, host.size());
  absl::StrAppend(&bytes, host, worker_address);
  AppendNumber(bytes, XXH3_64bits(bytes.data(), bytes.size()));
  return bytes;
}

absl::StatusOr<UcxAddress> UcxAddress::Parse(absl::string_view bytes) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV transport address of ", bytes.size(), " bytes: ", why));
  };
  constexpr size_t kFixedBytes = 3 * sizeof(uint64_t);
  if (bytes.size() <= kAddressMagic.size() + kFixedBytes) return refuse("too short");
  if (bytes.size() > kAddressBytesMax) return refuse("too long");
  if (!absl::StartsWith(bytes, kAddressMagic)) return refuse("not a UCX transport's");
  absl::string_view tail = bytes.substr(bytes.size() - sizeof(uint64_t));
  const absl::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  if (TakeNumber(tail) != XXH3_64bits(body.data(), body.size())) return refuse("damaged");
  absl::string_view rest = body.substr(kAddressMagic.size());
  UcxAddress address;
  address.origin = TakeNumber(rest);
  const uint64_t host_bytes = TakeNumber(rest);
  if (host_bytes >= rest.size()) return refuse("host name longer than the address");
  address.host = std::string(rest.substr(0, host_bytes));
  address.worker_address = std::string(rest.substr(host_bytes));
  return address;
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const std::string& transports) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  RETURN_IF_ERROR(worker->Init(transports));
  return worker;
}

absl::Status UcxWorker::Init(const std::string& transports) {
  std::string tls;
  if (transports == "auto") tls = "posix,tcp";
  if (transports == "shm") tls = "posix";
  if (transports == "tcp") tls = "tcp";
  if (tls.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("transports is '", transports, "', expected auto, shm or tcp"));
  }
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("ucp_config_read", status);
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config_owner(config,
                                                                            &ucp_config_release);
  for (const auto& [key, value] : Settings(tls)) {
    status = ucp_config_modify(config, key.c_str(), value.c_str());
    if (status != UCS_OK) return UcxError(absl::StrCat("setting ", key, "=", value), status);
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  status = ucp_init(&params, config, &context_);
  if (status != UCS_OK) return UcxError(absl::StrCat("ucp_init with transports ", tls), status);

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);
  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &address_bytes);
  if (status != UCS_OK) return UcxError("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return UcxError("ucp_worker_query", status);
  header_bytes_max_ = attributes.max_am_header;
  status = ucp_worker_get_efd(worker_, &worker_fd_);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void UcxWorker::Wait(absl::Duration timeout) {
  // kBusy: something happened since the last progress, so there is nothing to wait for.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  pollfd fds[2] = {{.fd = worker_fd_, .events = POLLIN, .revents = 0},
                   {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  ::ppoll(fds, 2, &limit, nullptr);
  uint64_t count = 0;
  // Not there unless Wake() was called; either way the event is over.
  if (fds[1].revents != 0 && ::read(wake_fd_, &count, sizeof count) < 0 && errno != EAGAIN) {
    TANDEM_CHECK(errno == EINTR, "eventfd: ", std::strerror(errno));
  }
}

void UcxWorker::Wake() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the waiter wakes anyway.
  if (::write(wake_fd_, &one, sizeof one) < 0) {
    TANDEM_CHECK(errno == EAGAIN || errno == EINTR, "eventfd: ", std::strerror(errno));
  }
}

// UCX 1.13 has no query for an endpoint's transports; its description for people lists one line a
// lane, "lane[0]: 5:posix/memory.0 md[4] ... am am_bw#0".
std::string UcxTransportName(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t text_bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &text_bytes);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string info(text, text_bytes);
  std::free(text);
  std::string name = "unknown";
  for (const absl::string_view line : absl::StrSplit(info, '\n')) {
    if (!absl::StrContains(line, "lane[")) continue;
    if (absl::StrContains(line, ":tcp/")) name = "tcp";
    if (absl::StrContains(line, ":posix/") || absl::StrContains(line, ":sysv/")) return "shm";
  }
  return name;
}

}  // namespace tandem::transfer
