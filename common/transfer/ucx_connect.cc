// Peers of the UCX transport from greeting to end.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_transport_impl.h"

namespace tandem::transfer {
namespace {

// Endpoints cost memory and file descriptors; greetings beyond this are dropped.
constexpr size_t kPeersMax = 4096;
// A shm costs some 2.5 MB of shared memory and a few descriptors; peers of this host beyond this
// are reached over TCP.
constexpr size_t kShmEndpointsMax = 64;
// How long UCX may take to close a shm. Closing waits for room in the other side's queue, which
// never comes when the other side is dead or stopped (UCX 1.13).
constexpr absl::Duration kShmCloseMax = absl::Milliseconds(10);

}  // namespace

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

bool UcxTransport::SharesMemory(const UcxAddress& address) const {
  return shm_context_ != nullptr && address.takes_shm && address.host == options_.host;
}

bool UcxTransport::MayUseTcp(const UcxAddress& address) const {
  return own_address_.takes_tcp && address.takes_tcp;
}

absl::Status UcxTransport::AddShmEndpoint(Peer& peer) {
  if (peer.shm != nullptr) return absl::OkStatus();
  if (shm_peers_.size() >= kShmEndpointsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(shm_peers_.size(), " KV peers share memory"));
  }
  auto shm = std::make_unique<ShmEndpoint>();
  ASSIGN_OR_RETURN(shm->worker, UcxWorker::Create(*shm_context_));
  RETURN_IF_ERROR(shm->worker->Handle(static_cast<unsigned>(MessageKind::kFrame),
                                      &UcxTransport::OnShmMessage, &peer));
  header_bytes_max_ = std::min(header_bytes_max_, shm->worker->header_bytes_max());
  peer.shm = std::move(shm);
  shm_peers_.push_back(&peer);
  return absl::OkStatus();
}

absl::Status UcxTransport::OpenShmEndpoint(Peer& peer, const std::string& shm_address) {
  if (!SharesMemory(peer.address) || shm_address.empty()) {
    return absl::UnavailableError("the peer shares no memory with this process");
  }
  RETURN_IF_ERROR(AddShmEndpoint(peer));
  return peer.shm->endpoint.Open(*peer.shm->worker, shm_address, &UcxTransport::OnEndpointError,
                                 &peer);
}

absl::StatusOr<PeerId> UcxTransport::Connect(const PeerAddress& peer) {
  const UcxSocketGuard::Scope scope(guard_);
  ASSIGN_OR_RETURN(const UcxAddress address,
                   UcxAddress::Parse(peer.transport_address, options_.fleet_secret));
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
  if (!SharesMemory(address) && !MayUseTcp(address)) {
    return absl::UnavailableError(
        absl::StrCat("node ", peer.node.value(), " on host '", address.host,
                     "' has no KV transport in common with this one on host '", options_.host,
                     "' (transports: ", options_.transports, ")"));
  }
  Peer& added = *AddPeer(address);
  absl::Status opened =
      added.control.Open(*control_, address.worker_address, &UcxTransport::OnEndpointError, &added);
  if (opened.ok() && SharesMemory(address)) {
    const absl::Status shm = AddShmEndpoint(added);
    if (!shm.ok() && MayUseTcp(address)) {
      Log(LogLevel::kWarning, "no shared memory for a KV peer of this host",
          {{"peer", added.id.value()}, {"reason", shm.message()}});
    } else {
      opened = shm;
    }
  }
  if (!opened.ok()) {
    Lose(added, opened, /*silent=*/true);
    return opened;
  }
  added.connection = random_->Next() | 1;
  added.state = Peer::State::kGreeted;
  Greet(added, MessageKind::kHello, /*offer_shm=*/added.shm != nullptr);
  if (added.shm == nullptr) OnReady(added, /*over_shm=*/false);
  return added.id;
}

void UcxTransport::Greet(Peer& peer, MessageKind kind, bool offer_shm) {
  std::string body;
  if (kind == MessageKind::kHello || kind == MessageKind::kWelcome) {
    UcxAddress address = own_address_;
    if (offer_shm) address.shm_address = peer.shm->worker->address();
    body = address.Serialize(options_.fleet_secret);
  }
  // Of the greeting that made the connection, or one of the two that did.
  const bool answers = kind == MessageKind::kWelcome || peer.connection == 0;
  auto request = std::make_unique<SendRequest>();
  request->peer = &peer;
  request->header = MessageHeader(kind, answers ? peer.remote_connection : peer.connection, body);
  StartSend(std::move(request), /*over_shm=*/kind == MessageKind::kReady && peer.over_shm);
}

void UcxTransport::OnHello(uint64_t origin, uint64_t connection, absl::string_view address) {
  const absl::StatusOr<UcxAddress> parsed = UcxAddress::Parse(address, options_.fleet_secret);
  if (!parsed.ok() || parsed->origin != origin || origin == origin_ || connection == 0) {
    DropMessage("a greeting that is damaged");
    return;
  }
  if (const auto it = by_origin_.find(origin); it != by_origin_.end()) {
    Peer& known = *it->second;
    if (known.remote_connection == connection) return;
    if (known.remote_connection == 0) {
      known.remote_connection = connection;
      const bool has_shm = known.state == Peer::State::kGreeted || !parsed->shm_address.empty();
      if (has_shm && origin < origin_) Accept(known, parsed->shm_address);
      return;
    }
    Lose(known, absl::UnavailableError("the peer connected anew"), /*silent=*/false);
  }
  if (peers_.size() >= kPeersMax) {
    DropMessage("a greeting beyond the limit of peers");
    return;
  }
  Peer& peer = *AddPeer(*parsed);
  peer.remote_connection = connection;
  const absl::Status opened =
      peer.control.Open(*control_, parsed->worker_address, &UcxTransport::OnEndpointError, &peer);
  if (!opened.ok()) {
    Lose(peer, opened, /*silent=*/true);
    return;
  }
  Accept(peer, parsed->shm_address);
}

void UcxTransport::Accept(Peer& peer, const std::string& shm_address) {
  if (shm_address.empty()) {
    OnReady(peer, /*over_shm=*/false);
    return;
  }
  const absl::Status shm = OpenShmEndpoint(peer, shm_address);
  if (shm.ok()) {
    peer.state = Peer::State::kWelcomed;
  } else {
    Log(LogLevel::kWarning, "no shared memory for a KV peer that asks for it",
        {{"peer", peer.id.value()}, {"host", peer.address.host}, {"reason", shm.message()}});
  }
  Greet(peer, MessageKind::kWelcome, /*offer_shm=*/shm.ok());
  if (!shm.ok()) OnReady(peer, /*over_shm=*/false);
}

void UcxTransport::OnWelcome(Peer& peer, uint64_t connection, absl::string_view address) {
  const absl::StatusOr<UcxAddress> parsed = UcxAddress::Parse(address, options_.fleet_secret);
  if (!parsed.ok() || parsed->origin != peer.address.origin) {
    DropMessage("a welcome that is damaged");
    return;
  }
  if (peer.state != Peer::State::kGreeted || connection != peer.connection) return;
  peer.remote_connection = connection;
  const absl::Status shm = OpenShmEndpoint(peer, parsed->shm_address);
  if (!shm.ok() && !MayUseTcp(peer.address)) {
    Greet(peer, MessageKind::kBye);
    Lose(peer, shm, /*silent=*/false);
    return;
  }
  peer.over_shm = shm.ok();
  Greet(peer, MessageKind::kReady);
  OnReady(peer, shm.ok());
}

void UcxTransport::OnReady(Peer& peer, bool over_shm) {
  peer.state = Peer::State::kOpen;
  peer.over_shm = over_shm;
  const bool slow = !over_shm && options_.transports == "auto" && !options_.host.empty() &&
                    peer.address.host == options_.host;
  Log(slow ? LogLevel::kWarning : LogLevel::kInfo,
      slow ? "KV peer on this host is reached over TCP, not shared memory" : "KV peer connected",
      {{"peer", peer.id.value()},
       {"host", peer.address.host},
       {"transport", over_shm ? "shm" : "tcp"}});
  for (std::unique_ptr<SendRequest>& request : std::exchange(peer.waiting, {})) {
    StartSend(std::move(request), over_shm);
  }
}

void UcxTransport::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(arg);
  if (!peer.lost) peer.transport->Lose(peer, UcxError("connection", status), /*silent=*/false);
}

void UcxTransport::Disconnect(PeerId peer) {
  const UcxSocketGuard::Scope scope(guard_);
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second->silent = true;
  if (it->second->lost) return;
  Greet(*it->second, MessageKind::kBye);
  Lose(*it->second, absl::CancelledError("disconnected"), /*silent=*/true);
}

void UcxTransport::Lose(Peer& peer, const absl::Status& why, bool silent) {
  peer.lost = true;
  peer.lost_at = RealClock().Now();
  peer.silent = peer.silent || silent;
  peer.why = why;
  peers_changed_ = true;
  const auto it = by_origin_.find(peer.address.origin);
  if (it != by_origin_.end() && it->second == &peer) by_origin_.erase(it);
  for (std::unique_ptr<SendRequest>& request : std::exchange(peer.waiting, {})) {
    request->peer = nullptr;
    FinishSend(std::move(request), absl::CancelledError("the connection was closed"));
  }
}

bool UcxTransport::EndShmEndpoint(Peer& peer) {
  if (peer.shm == nullptr) return true;
  ShmEndpoint& shm = *peer.shm;
  shm.endpoint.StartClose();
  const bool closed = shm.endpoint.Closed() && shm.sends.empty() && shm.receives.empty();
  if (!closed && RealClock().Now() < peer.lost_at + kShmCloseMax) return false;
  DestroyShmEndpoint(peer);
  return true;
}

// Without its worker nobody reads the queue, and bytes land only when this process takes them from
// there; what is to be sent was copied into the other side's queue, or never will be. So nothing
// is in flight afterwards, whatever UCX has called back.
void UcxTransport::DestroyShmEndpoint(Peer& peer) {
  ShmEndpoint& shm = *peer.shm;
  shm_peers_.erase(std::find(shm_peers_.begin(), shm_peers_.end(), &peer));
  shm.worker.reset();
  const absl::Status cancelled = absl::CancelledError("the connection was closed");
  for (SendRequest* send : std::exchange(shm.sends, {})) {
    FinishSend(std::unique_ptr<SendRequest>(send), cancelled);
  }
  for (ReceiveRequest* receive : std::exchange(shm.receives, {})) {
    FinishReceive(std::unique_ptr<ReceiveRequest>(receive), cancelled);
  }
  peer.shm.reset();
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
    peer.control.StartClose();
    const bool shm_ended = EndShmEndpoint(peer);
    if (!peer.control.Closed() || !shm_ended || peer.sends_in_flight > 0 ||
        peer.receives_in_flight > 0) {
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

}  // namespace tandem::transfer
