#include "common/transfer/ucx_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace tandem::transfer {
namespace {

// A setting's value, and the keys under which different versions of UCX know the setting, without
// the "UCX_" prefix. UCX 1.13's ucp_config_modify knows a transport's settings by the key they have
// in common with others' (TX_SEG_SIZE), 1.22's by the name in the environment (TCP_TX_SEG_SIZE).
struct Setting {
  std::vector<std::string> keys;
  std::string value;
};

absl::Status Apply(const Setting& setting, ucp_config_t* config) {
  ucs_status_t status = UCS_ERR_INVALID_PARAM;
  bool known = false;
  for (const std::string& key : setting.keys) {
    status = ucp_config_modify(config, key.c_str(), setting.value.c_str());
    known = known || status == UCS_OK;
  }
  if (known) return absl::OkStatus();
  return UcxError(absl::StrCat("setting ", setting.keys.back(), "=", setting.value), status);
}

// The settings that this transport relies on.
std::vector<Setting> Settings(const std::string& tls, UcxContext::Memory memory) {
  // cuda_copy moves bytes between CUDA memory and UCX's own buffers; no peer can reach memory
  // through it. UCX's cuda_ipc would open this process's memory to other processes of the host: it
  // stays off.
  const bool cuda = memory == UcxContext::Memory::kHostAndCuda;
  std::vector<Setting> settings = {
      {{"TLS"}, cuda ? absl::StrCat(tls, ",cuda_copy") : tls},
      // How soon UCX notices a dead peer whose death breaks no connection.
      {{"KEEPALIVE_INTERVAL"}, "500ms"},
      // Rendezvous by active messages: no peer writes into this process by itself, not even late.
      {{"RNDV_SCHEME"}, "am"},
  };
  // With peer error handling UCX refuses shared memory unless told otherwise.
  if (tls == "posix") settings.push_back({{"MM_ERROR_HANDLING", "POSIX_ERROR_HANDLING"}, "y"});
  // When a connection is reset in the middle of a zero-copy send, UCX 1.13's TCP completes it twice
  // and ends this process by an assertion (1 of 14 kills of a receiver). Copied sends have no
  // completion to be run twice; segments of 256 KiB instead of 8 make up for the copy
  // (docs/PERFORMANCE.md has the rate).
  if (tls == "tcp") {
    settings.push_back({{"ZCOPY_THRESH"}, "inf"});
    settings.push_back({{"TX_SEG_SIZE", "TCP_TX_SEG_SIZE"}, "256kb"});
    settings.push_back({{"RX_SEG_SIZE", "TCP_RX_SEG_SIZE"}, "256kb"});
    // Otherwise connecting to a host that does not answer holds this thread for 3 s, and all other
    // transfers with it.
    settings.push_back({{"CONN_NB", "TCP_CONN_NB"}, "y"});
  }
  return settings;
}

// Suppresses UCX's log while it lives.
class QuietUcx {
 public:
  QuietUcx() { ucs_log_push_handler(&Swallow); }
  ~QuietUcx() { ucs_log_pop_handler(); }
  QuietUcx(const QuietUcx&) = delete;
  QuietUcx& operator=(const QuietUcx&) = delete;

 private:
  static ucs_log_func_rc_t Swallow(const char*, unsigned, const char*, ucs_log_level_t,
                                   const ucs_log_component_config_t*, const char*, va_list) {
    return UCS_LOG_FUNC_RC_STOP;
  }
};

// `warning`: "invalid configurations: NAME=VALUE,NAME=VALUE". False when it has all names of one of
// our settings.
bool OnlyOtherVersionsNames(absl::string_view warning) {
  absl::flat_hash_set<std::string> unknown;
  for (const absl::string_view word : absl::StrSplit(warning, absl::ByAnyChar(" ,"))) {
    unknown.emplace(word.substr(0, word.find('=')));
  }
  for (const char* tls : {"tcp", "posix"}) {
    for (const Setting& setting : Settings(tls, UcxContext::Memory::kHost)) {
      const auto is_unknown = [&](const std::string& key) { return unknown.contains(key); };
      if (std::all_of(setting.keys.begin(), setting.keys.end(), is_unknown)) return false;
    }
  }
  return true;
}

// What UCX would print goes to this process's log. One warning is left out: of each setting UCX is
// told every name, and of those that are other versions' it warns whenever a worker is made. A
// setting none of whose names it knows is worth its warning.
ucs_log_func_rc_t LogUcx(const char*, unsigned, const char*, ucs_log_level_t level,
                         const ucs_log_component_config_t*, const char* format, va_list arguments) {
  char text[512];
  va_list copy;
  va_copy(copy, arguments);
  std::vsnprintf(text, sizeof text, format, copy);
  va_end(copy);
  if (absl::StartsWith(format, "invalid configuration") && OnlyOtherVersionsNames(text))
    return UCS_LOG_FUNC_RC_STOP;
  Log(level <= UCS_LOG_LEVEL_ERROR ? LogLevel::kWarning : LogLevel::kInfo, "UCX says",
      {{"text", text}});
  return UCS_LOG_FUNC_RC_STOP;
}

absl::Status CheckCuda(ucp_context_h context) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t status = ucp_context_query(context, &attributes);
  if (status != UCS_OK) return UcxError("ucp_context_query", status);
  if ((attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "UCX ", ucp_get_version_string(),
      " carries host memory only: it was built without CUDA, or finds no CUDA driver and device"));
}

}  // namespace

absl::Status UcxError(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const std::string& tls,
                                                               Memory memory) {
  static const bool filtered = [] {
    ucs_log_push_handler(&LogUcx);
    return true;
  }();
  TANDEM_CHECK(filtered);
  // The Status below reports a missing transport, instead of UCX's warning.
  std::optional<QuietUcx> quiet;
  if (memory == Memory::kHostAndCuda) quiet.emplace();
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("ucp_config_read", status);
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config_owner(config,
                                                                            &ucp_config_release);
  for (const Setting& setting : Settings(tls, memory)) {
    RETURN_IF_ERROR(Apply(setting, config));
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  std::unique_ptr<UcxContext> context(new UcxContext);
  status = ucp_init(&params, config, &context->context_);
  if (status != UCS_OK) {
    context->context_ = nullptr;
    return UcxError(absl::StrCat("ucp_init with transport ", tls), status);
  }
  if (memory == Memory::kHostAndCuda) RETURN_IF_ERROR(CheckCuda(context->context_));
  return context;
}

UcxContext::~UcxContext() {
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(UcxContext& context) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  RETURN_IF_ERROR(worker->Init(context));
  return worker;
}

absl::Status UcxWorker::Init(UcxContext& context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context.handle(), &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return UcxError("ucp_worker_create", status);
  }
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
  status = ucp_worker_get_efd(worker_, &fd_);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

absl::Status UcxWorker::Handle(unsigned id, ucp_am_recv_callback_t on_message, void* arg) {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = on_message;
  param.arg = arg;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &param);
  if (status != UCS_OK) return UcxError("ucp_worker_set_am_recv_handler", status);
  return absl::OkStatus();
}

absl::Status UcxEndpoint::Open(UcxWorker& worker, const std::string& address,
                               ucp_err_handler_cb_t on_error, void* arg) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = arg;
  const ucs_status_t status = ucp_ep_create(worker.handle(), &params, &handle_);
  if (status != UCS_OK) {
    handle_ = nullptr;
    return UcxError("ucp_ep_create", status);
  }
  return absl::OkStatus();
}

void UcxEndpoint::StartClose() {
  if (handle_ == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t result = ucp_ep_close_nbx(handle_, &param);
  if (UCS_PTR_IS_PTR(result)) closing_ = result;
  handle_ = nullptr;
}

bool UcxEndpoint::Closed() {
  if (handle_ != nullptr) return false;
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS) {
    ucp_request_free(closing_);
    closing_ = nullptr;
  }
  return closing_ == nullptr;
}

absl::StatusOr<std::unique_ptr<WakeEvent>> WakeEvent::Create() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  return std::unique_ptr<WakeEvent>(new WakeEvent(fd));
}

WakeEvent::~WakeEvent() { ::close(fd_); }

void WakeEvent::Wait(const std::vector<int>& fds, absl::Duration timeout) {
  std::vector<pollfd> polled;
  polled.reserve(fds.size() + 1);
  polled.push_back({.fd = fd_, .events = POLLIN, .revents = 0});
  for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  ::ppoll(polled.data(), polled.size(), &limit, nullptr);
  uint64_t count = 0;
  // Not there unless Wake() was called; either way the event is over.
  if (polled[0].revents != 0 && ::read(fd_, &count, sizeof count) < 0 && errno != EAGAIN) {
    TANDEM_CHECK(errno == EINTR, "eventfd: ", std::strerror(errno));
  }
}

void WakeEvent::Wake() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the waiter wakes anyway.
  if (::write(fd_, &one, sizeof one) < 0) {
    TANDEM_CHECK(errno == EAGAIN || errno == EINTR, "eventfd: ", std::strerror(errno));
  }
}

}  // namespace tandem::transfer
