#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_transport_impl.h"

namespace tandem::transfer {
namespace {

constexpr int kProgressBatch = 16;
// UCX 1.13 skips its keepalive on all but every 32nd call of ucp_worker_progress.
constexpr int kCallsToKeepalive = 32;
// How long a transport that ends waits for UCX to give its requests back.
constexpr absl::Duration kShutdownMax = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  RETURN_IF_ERROR(transport->Start());
  return transport;
}

UcxTransport::UcxTransport(const UcxOptions& options)
    : options_(options),
      random_(NewSystemRandom()),
      origin_(random_->Next()),
      guard_(options.fleet_secret) {}

absl::Status UcxTransport::Start() {
  const UcxSocketGuard::Scope scope(guard_);
  const std::string& wanted = options_.transports;
  if (wanted != "auto" && wanted != "shm" && wanted != "tcp") {
    return absl::InvalidArgumentError(
        absl::StrCat("transports is '", wanted, "', expected auto, shm or tcp"));
  }
  ASSIGN_OR_RETURN(wake_event_, WakeEvent::Create());
  const auto memory = options_.device != nullptr && !options_.device->host_addressable()
                          ? UcxContext::Memory::kHostAndCuda
                          : UcxContext::Memory::kHost;
  ASSIGN_OR_RETURN(tcp_context_, UcxContext::Create("tcp", memory));
  ASSIGN_OR_RETURN(control_, UcxWorker::Create(*tcp_context_));
  RETURN_IF_ERROR(control_->Handle(static_cast<unsigned>(MessageKind::kFrame),
                                   &UcxTransport::OnControlMessage, this));
  header_bytes_max_ = control_->header_bytes_max();
  if (wanted != "tcp") {
    absl::StatusOr<std::unique_ptr<UcxContext>> shm = UcxContext::Create("posix", memory);
    if (shm.ok()) {
      shm_context_ = *std::move(shm);
    } else if (wanted == "shm") {
      return shm.status();
    } else {
      Log(LogLevel::kWarning, "no shared memory for KV", {{"reason", shm.status().message()}});
    }
  }
  own_address_ = UcxAddress{.origin = origin_,
                            .takes_tcp = wanted != "shm",
                            .takes_shm = shm_context_ != nullptr,
                            .host = options_.host,
                            .worker_address = control_->address(),
                            .shm_address = ""};
  address_ = own_address_.Serialize(options_.fleet_secret);
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  const UcxSocketGuard::Scope scope(guard_);
  listener_ = nullptr;
  for (auto& [id, peer] : peers_) {
    if (!peer->lost) Lose(*peer, absl::CancelledError("the transport ends"), /*silent=*/true);
  }
  const absl::Time give_up = RealClock().Now() + kShutdownMax;
  while (!peers_.empty() && RealClock().Now() < give_up) Progress();
  if (!peers_.empty()) {
    Log(LogLevel::kError, "UCX kept requests of a closed transport", {{"peers", peers_.size()}});
  }
  // UCX gives up what it kept; its callbacks use the peers and this.
  for (auto& [id, peer] : peers_) {
    if (peer->shm != nullptr) DestroyShmEndpoint(*peer);
  }
  control_.reset();
}

void UcxTransport::Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) {
  const UcxSocketGuard::Scope scope(guard_);
  auto request = std::make_unique<SendRequest>();
  request->done = std::move(done);
  const auto it = peers_.find(peer);
  if (it == peers_.end() || it->second->lost) {
    FinishSend(std::move(request),
               absl::UnavailableError(absl::StrCat("KV peer ", peer.value(), " is gone")));
    return;
  }
  request->header = MessageHeader(MessageKind::kFrame, 0, frame.SerializeAsString());
  if (request->header.size() > header_bytes_max_) {
    const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
        "KV frame header of ", request->header.size(), " bytes, UCX takes ", header_bytes_max_));
    FinishSend(std::move(request), status);
    return;
  }
  request->pieces.reserve(payload.size());
  for (const absl::Span<const std::byte> piece : payload) {
    request->pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    request->memory = MemoryOf(piece.data());
  }
  Peer& to = *it->second;
  request->peer = &to;
  if (to.state != Peer::State::kOpen) {
    to.waiting.push_back(std::move(request));
  } else {
    StartSend(std::move(request), to.over_shm);
  }
}

void UcxTransport::StartSend(std::unique_ptr<SendRequest> request, bool over_shm) {
  request->transport = this;
  request->over_shm = over_shm;
  Peer& peer = *request->peer;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = request->memory;
  param.cb.send = &UcxTransport::OnSendDone;
  param.user_data = request.get();
  param.datatype = ucp_dt_make_contig(1);
  const void* buffer = nullptr;
  size_t count = 0;
  if (request->pieces.size() == 1) {
    buffer = request->pieces[0].buffer;
    count = request->pieces[0].length;
  } else if (!request->pieces.empty()) {
    param.datatype = ucp_dt_make_iov();
    buffer = request->pieces.data();
    count = request->pieces.size();
  }
  ++peer.sends_in_flight;
  if (over_shm) peer.shm->sends.insert(request.get());
  SendRequest* in_flight = request.release();  // OnSendDone takes it back
  const ucs_status_ptr_t result =
      ucp_am_send_nbx((over_shm ? peer.shm->endpoint : peer.control).handle(),
                      static_cast<unsigned>(MessageKind::kFrame), in_flight->header.data(),
                      in_flight->header.size(), buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnSendDone(nullptr, UCS_PTR_STATUS(result), in_flight);
}

void UcxTransport::OnSendDone(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<SendRequest> send(static_cast<SendRequest*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  UcxTransport* transport = send->transport;
  if (send->over_shm) send->peer->shm->sends.erase(send.get());
  absl::Status result;
  if (status == UCS_ERR_CANCELED) {
    result = absl::CancelledError("the connection was closed");
  } else if (status != UCS_OK) {
    result = UcxError("send", status);
  }
  transport->FinishSend(std::move(send), result);
}

void UcxTransport::FinishSend(std::unique_ptr<SendRequest> request, const absl::Status& status) {
  request->status = status;
  finished_sends_.push_back(std::move(request));
}

bool UcxTransport::RunCompletions() {
  if (finished_sends_.empty()) return false;
  // Completions send more; what they finish waits for the next round.
  for (std::unique_ptr<SendRequest>& send : std::exchange(finished_sends_, {})) {
    if (send->peer != nullptr) {
      --send->peer->sends_in_flight;
      if (send->peer->lost) peers_changed_ = true;
    }
    if (send->done) send->done(send->status);
  }
  return true;
}

// Bounded, so that commands and deadlines are not kept waiting by a busy peer.
bool UcxTransport::ProgressWorker(UcxWorker& worker, int idle_calls_max) {
  bool moved = false;
  for (int i = 0; i < kProgressBatch && idle_calls_max > 0;) {
    if (ucp_worker_progress(worker.handle()) == 0) {
      --idle_calls_max;
      continue;
    }
    ++i;
    moved = true;
    if (!finished_sends_.empty() || peers_changed_) break;
  }
  return moved;
}

bool UcxTransport::Progress() {
  const UcxSocketGuard::Scope scope(guard_);
  round_began_ = RealClock().Now();
  // After a sleep UCX is called more often than it has work: it looks for dead peers on every 32nd
  // call only. Lanes need no such look: the death of their peers breaks the control connection.
  bool moved = ProgressWorker(*control_, std::exchange(waited_, false) ? kCallsToKeepalive : 1);
  // A greeting may add a shm meanwhile, nothing takes one away before Reap.
  for (size_t i = 0; i < shm_peers_.size(); ++i) {
    moved = ProgressWorker(*shm_peers_[i]->shm->worker, 1) || moved;
  }
  return Reap() || moved;
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (!finished_sends_.empty()) return;
  waited_ = true;
  std::vector<int> fds;
  fds.reserve(shm_peers_.size() + 1);
  if (!control_->Arm()) return;
  fds.push_back(control_->fd());
  for (const Peer* peer : shm_peers_) {
    if (!peer->shm->worker->Arm()) return;
    fds.push_back(peer->shm->worker->fd());
  }
  wake_event_->Wait(fds, peers_changed_ ? std::min(timeout, absl::Milliseconds(1)) : timeout);
}

std::string UcxTransport::TransportName(PeerId peer) const {
  const auto it = peers_.find(peer);
  if (it == peers_.end() || it->second->state != Peer::State::kOpen) return "unknown";
  return absl::StrCat(it->second->over_shm ? "shm" : "tcp",
                      options_.device == nullptr ? "" : "+device");
}

}  // namespace tandem::transfer
