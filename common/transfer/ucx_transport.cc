#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_transport_impl.h"

namespace tandem::transfer {
namespace {

// Endpoints cost memory and file descriptors; greetings beyond this are dropped.
constexpr size_t kPeersMax = 4096;
constexpr int kProgressBatch = 16;
// UCX 1.13 skips its keepalive on all but every 32nd call of ucp_worker_progress.
constexpr int kCallsToKeepalive = 32;
// How long a transport that ends waits for UCX to give its requests back.
constexpr absl::Duration kShutdownMax = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(options.transports));
  auto transport = std::make_unique<UcxTransport>(options, std::move(worker));
  RETURN_IF_ERROR(transport->Start());
  return transport;
}

UcxTransport::UcxTransport(const UcxOptions& options, std::unique_ptr<UcxWorker> worker)
    : options_(options),
      worker_(std::move(worker)),
      random_(NewSystemRandom()),
      origin_(random_->Next()) {
  address_ =
      UcxAddress{.origin = origin_, .host = options_.host, .worker_address = worker_->address()}
          .Serialize();
}

UcxTransport::~UcxTransport() {
  listener_ = nullptr;
  for (auto& [id, peer] : peers_) {
    if (!peer->lost) Lose(*peer, absl::CancelledError("the transport ends"), /*silent=*/true);
  }
  const absl::Time give_up = RealClock().Now() + kShutdownMax;
  while (!peers_.empty() && RealClock().Now() < give_up) {
    ucp_worker_progress(worker_->handle());
    Reap();
  }
  if (!peers_.empty()) {
    Log(LogLevel::kError, "UCX kept requests of a closed transport", {{"peers", peers_.size()}});
  }
}

UcxTransport::Peer* UcxTransport::AddPeer(const UcxAddress& address) {
  auto peer = std::make_unique<Peer>();
  peer->transport = this;
  peer->id = PeerId(next_peer_++);
  peer->address = address;
  Peer* added = peer.get();
  by_origin_[address.origin] = added;
  peers_.emplace(added->id, std::move(peer));
  return added;
}

absl::StatusOr<PeerId> UcxTransport::Connect(const PeerAddress& peer) {
  ASSIGN_OR_RETURN(const UcxAddress address, UcxAddress::Parse(peer.transport_address));
  if (address.origin == origin_) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", peer.node.value(), ": a KV transport was connected to itself"));
  }
  if (const auto it = by_origin_.find(address.origin); it != by_origin_.end()) {
    return it->second->id;
  }
  if (peers_.size() >= kPeersMax) {
    return absl::ResourceExhaustedError(absl::StrCat(peers_.size(), " KV peers are connected"));
  }
  Peer* added = AddPeer(address);
  const absl::Status opened = OpenEndpoint(*added);
  if (!opened.ok()) {
    by_origin_.erase(address.origin);
    peers_.erase(added->id);
    return opened;
  }
  added->connection = random_->Next() | 1;
  Greet(*added, MessageKind::kHello);
  return added->id;
}

absl::Status UcxTransport::OpenEndpoint(Peer& peer) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::OnEndpointError;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucp_ep_create(worker_->handle(), &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    return UcxError("ucp_ep_create", status);
  }
  return absl::OkStatus();
}

void UcxTransport::Greet(Peer& peer, MessageKind kind) {
  auto request = std::make_unique<SendRequest>();
  request->peer = &peer;
  request->header =
      MessageHeader(kind, peer.connection, kind == MessageKind::kHello ? address_ : "");
  StartSend(std::move(request));
}

void UcxTransport::Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) {
  auto request = std::make_unique<SendRequest>();
  request->done = std::move(done);
  const auto it = peers_.find(peer);
  if (it == peers_.end() || it->second->lost) {
    request->status = absl::UnavailableError(absl::StrCat("KV peer ", peer.value(), " is gone"));
    finished_sends_.push_back(std::move(request));
    return;
  }
  request->peer = it->second.get();
  request->header = MessageHeader(MessageKind::kFrame, 0, frame.SerializeAsString());
  request->pieces.reserve(payload.size());
  for (const absl::Span<const std::byte> piece : payload) {
    request->pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  if (request->header.size() > worker_->header_bytes_max()) {
    request->peer = nullptr;
    request->status =
        absl::InvalidArgumentError(absl::StrCat("KV frame header of ", request->header.size(),
                                                " bytes, UCX takes ", worker_->header_bytes_max()));
    finished_sends_.push_back(std::move(request));
    return;
  }
  StartSend(std::move(request));
}

void UcxTransport::StartSend(std::unique_ptr<SendRequest> request) {
  request->transport = this;
  Peer& peer = *request->peer;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.send = &UcxTransport::OnSendDone;
  param.user_data = request.get();
  const void* buffer = nullptr;
  size_t count = 0;
  if (request->pieces.size() == 1) {
    param.datatype = ucp_dt_make_contig(1);
    buffer = request->pieces[0].buffer;
    count = request->pieces[0].length;
  } else if (!request->pieces.empty()) {
    param.datatype = ucp_dt_make_iov();
    buffer = request->pieces.data();
    count = request->pieces.size();
  } else {
    param.datatype = ucp_dt_make_contig(1);
  }
  ++peer.sends_in_flight;
  SendRequest* in_flight = request.release();  // OnSendDone takes it back
  const ucs_status_ptr_t result =
      ucp_am_send_nbx(peer.endpoint, static_cast<unsigned>(MessageKind::kFrame),
                      in_flight->header.data(), in_flight->header.size(), buffer, count, &param);
  if (UCS_PTR_IS_PTR(result)) return;
  OnSendDone(nullptr, UCS_PTR_STATUS(result), in_flight);
}

void UcxTransport::OnSendDone(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<SendRequest> send(static_cast<SendRequest*>(user_data));
  if (request != nullptr) ucp_request_free(request);
  if (status == UCS_ERR_CANCELED) {
    send->status = absl::CancelledError("the connection was closed");
  } else if (status != UCS_OK) {
    send->status = UcxError("send", status);
  }
  UcxTransport* transport = send->transport;
  transport->finished_sends_.push_back(std::move(send));
}

void UcxTransport::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(arg);
  if (!peer.lost) peer.transport->Lose(peer, UcxError("connection", status), /*silent=*/false);
}

void UcxTransport::Disconnect(PeerId peer) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second->silent = true;
  if (it->second->lost) return;
  Greet(*it->second, MessageKind::kBye);
  Lose(*it->second, absl::CancelledError("disconnected"), /*silent=*/true);
}

void UcxTransport::Lose(Peer& peer, const absl::Status& why, bool silent) {
  peer.lost = true;
  peer.silent = peer.silent || silent;
  peer.why = why;
  peers_changed_ = true;
  const auto it = by_origin_.find(peer.address.origin);
  if (it != by_origin_.end() && it->second == &peer) by_origin_.erase(it);
}

bool UcxTransport::RunCompletions() {
  if (finished_sends_.empty()) return false;
  // Completions send more; what they finish waits for the next round.
  for (std::unique_ptr<SendRequest>& send : std::exchange(finished_sends_, {})) {
    if (send->peer != nullptr) {
      --send->peer->sends_in_flight;
      if (send->peer->lost) peers_changed_ = true;
    }
    // Finds and logs the transport once the connection is up.
    if (send->peer != nullptr && send->status.ok()) TransportName(send->peer->id);
    if (send->done) send->done(send->status);
  }
  return true;
}

bool UcxTransport::Reap() {
  bool moved = RunCompletions();
  if (!std::exchange(peers_changed_, false)) return moved;
  std::vector<std::unique_ptr<Peer>> ended;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = *it->second;
    if (!peer.lost) {
      ++it;
      continue;
    }
    if (!peer.closed && peer.closing == nullptr && peer.endpoint != nullptr) {
      ucp_request_param_t param = {};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t result = ucp_ep_close_nbx(peer.endpoint, &param);
      if (UCS_PTR_IS_PTR(result)) peer.closing = result;
    }
    if (peer.closing != nullptr && ucp_request_check_status(peer.closing) != UCS_INPROGRESS) {
      ucp_request_free(peer.closing);
      peer.closing = nullptr;
    }
    if (peer.closing == nullptr) peer.closed = true;
    if (!peer.closed || peer.sends_in_flight > 0 || peer.receives_in_flight > 0) {
      peers_changed_ = true;  // look again after the next progress
      ++it;
      continue;
    }
    moved = true;
    ended.push_back(std::move(it->second));
    it = peers_.erase(it);
  }
  for (const std::unique_ptr<Peer>& peer : ended) {
    if (!peer->silent && listener_ != nullptr) listener_->OnPeerLost(peer->id, peer->why);
  }
  return moved;
}

bool UcxTransport::Progress() {
  bool moved = false;
  // After a sleep UCX is called more often than it has work: it looks for dead peers on every 32nd
  // call only. Bounded, so that commands and deadlines are not kept waiting by a busy peer.
  int idle_calls_left = std::exchange(waited_, false) ? kCallsToKeepalive : 1;
  for (int i = 0; i < kProgressBatch && idle_calls_left > 0;) {
    if (ucp_worker_progress(worker_->handle()) == 0) {
      --idle_calls_left;
      continue;
    }
    ++i;
    moved = true;
    if (!finished_sends_.empty() || peers_changed_) break;
  }
  return Reap() || moved;
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (!finished_sends_.empty()) return;
  waited_ = true;
  worker_->Wait(peers_changed_ ? std::min(timeout, absl::Milliseconds(1)) : timeout);
}

std::string UcxTransport::TransportName(PeerId peer) const {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return "unknown";
  const Peer& found = *it->second;
  if (found.transport_name == "unknown" && !found.lost && found.endpoint != nullptr) {
    found.transport_name = UcxTransportName(found.endpoint);
    if (found.transport_name != "unknown") LogTransport(found);
  }
  return found.transport_name;
}

void UcxTransport::LogTransport(const Peer& peer) const {
  const bool slow = peer.transport_name == "tcp" && options_.transports == "auto" &&
                    !options_.host.empty() && peer.address.host == options_.host;
  Log(slow ? LogLevel::kWarning : LogLevel::kInfo,
      slow ? "KV peer on this host is reached over TCP, not shared memory" : "KV peer connected",
      {{"peer", peer.id.value()}, {"host", peer.address.host}, {"transport", peer.transport_name}});
}

}  // namespace tandem::transfer
