#include "common/transfer/ucx_peer_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {
namespace {

// Endpoints cost memory and file descriptors; greetings beyond this are dropped.
constexpr size_t kPeersMax = 4096;
// Shared memory with one peer costs some 2.5 MB and a few descriptors; peers of this host beyond
// this are reached over TCP.
constexpr size_t kShmEndpointsMax = 64;
// How long UCX may take to close a shared-memory endpoint. Closing waits for room in the other
// side's queue, which never comes when the other side is dead or stopped (UCX 1.13).
constexpr absl::Duration kShmCloseMax = absl::Milliseconds(10);

}  // namespace

UcxPeer& UcxPeerTable::Add(const UcxAddress& address) {
  auto peer = std::make_unique<UcxPeer>();
  peer->table = this;
  peer->id = PeerId(next_peer_++);
  peer->address = address;
  UcxPeer* added = peer.get();
  by_origin_[address.origin] = added;
  peers_.emplace(added->id, std::move(peer));
  return *added;
}

UcxPeer* UcxPeerTable::Find(PeerId peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : it->second.get();
}

UcxPeer* UcxPeerTable::FindByOrigin(uint64_t origin) const {
  const auto it = by_origin_.find(origin);
  return it == by_origin_.end() ? nullptr : it->second;
}

// ---- Shared memory --------------------------------------------------------------------------

absl::Status UcxPeerTable::AddShmWorker(UcxPeer& peer) {
  if (peer.shm != nullptr) return absl::OkStatus();
  if (shm_peers_.size() >= kShmEndpointsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shm_peers_.size(), " KV peers share memory, the limit is ", kShmEndpointsMax));
  }
  auto shm = std::make_unique<UcxShmEndpoint>();
  ASSIGN_OR_RETURN(shm->worker, local_.NewShmWorker(&UcxPeerTable::OnShmMessage, &peer));
  peer.shm = std::move(shm);
  shm_peers_.push_back(&peer);
  return absl::OkStatus();
}

absl::Status UcxPeerTable::OpenShmEndpoint(UcxPeer& peer, const std::string& shm_address) {
  if (!local_.SharesMemoryWith(peer.address) || shm_address.empty()) {
    return absl::UnavailableError("the peer shares no memory with this process");
  }
  RETURN_IF_ERROR(AddShmWorker(peer));
  return peer.shm->endpoint.Open(*peer.shm->worker, shm_address, &UcxPeerTable::OnEndpointError,
                                 &peer);
}

// Returning UCS_OK without starting a receive drops the payload, wherever it is.
ucs_status_t UcxPeerTable::OnShmMessage(void* arg, const void* header, size_t header_bytes,
                                        void* data, size_t data_bytes,
                                        const ucp_am_recv_param_t* param) {
  UcxPeer& peer = *static_cast<UcxPeer*>(arg);
  peer.table->sink_.OnMessage(
      {.worker = peer.shm->worker.get(),
       .shm_peer = &peer,
       .header = absl::string_view(static_cast<const char*>(header), header_bytes),
       .data = data,
       .data_bytes = data_bytes,
       .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0});
  return UCS_OK;
}

// ---- Greetings ------------------------------------------------------------------------------

absl::StatusOr<PeerId> UcxPeerTable::Connect(const PeerAddress& peer) {
  const UcxOptions& options = local_.options();
  ASSIGN_OR_RETURN(const UcxAddress address,
                   UcxAddress::Parse(peer.transport_address, options.fleet_secret));
  if (address.origin == local_.origin()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", peer.node.value(), ": a KV transport cannot connect to itself"));
  }
  if (const UcxPeer* known = FindByOrigin(address.origin); known != nullptr) return known->id;
  if (peers_.size() >= kPeersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(peers_.size(), " KV peers are connected, the limit is ", kPeersMax));
  }
  if (!local_.SharesMemoryWith(address) && !local_.MayUseTcpWith(address)) {
    return absl::UnavailableError(
        absl::StrCat("node ", peer.node.value(), " on host '", address.host,
                     "' has no KV transport in common with this one on host '", options.host,
                     "' (transports: ", options.transports, ")"));
  }
  UcxPeer& added = Add(address);
  added.node = peer.node.value();
  if (const absl::Status opened = OpenEndpoints(added); !opened.ok()) {
    Lose(added, opened, /*silent=*/true);
    return opened;
  }
  added.connection = local_.NewConnectionNumber();
  added.state = UcxPeer::State::kGreeted;
  Greet(added, UcxMessageKind::kHello, /*offer_shm=*/added.shm != nullptr);
  if (added.shm == nullptr) OnReady(added, /*over_shm=*/false);
  return added.id;
}

absl::Status UcxPeerTable::OpenEndpoints(UcxPeer& peer) {
  RETURN_IF_ERROR(peer.control.Open(local_.control(), peer.address.worker_address,
                                    &UcxPeerTable::OnEndpointError, &peer));
  if (!local_.SharesMemoryWith(peer.address)) return absl::OkStatus();
  const absl::Status shm = AddShmWorker(peer);
  if (shm.ok() || !local_.MayUseTcpWith(peer.address)) return shm;
  Log(LogLevel::kWarning, "cannot share memory with a KV peer on this host; using TCP",
      {{"peer", peer.id.value()}, {"node", peer.node}, {"reason", shm.message()}});
  return absl::OkStatus();
}

void UcxPeerTable::Greet(UcxPeer& peer, UcxMessageKind kind, bool offer_shm) {
  std::string body;
  if (kind == UcxMessageKind::kHello || kind == UcxMessageKind::kWelcome) {
    UcxAddress address = local_.address();
    if (offer_shm) address.shm_address = peer.shm->worker->address();
    body = address.Serialize(local_.options().fleet_secret);
  }
  // The number of the HELLO that this message answers, or of this side's own.
  const bool answers = kind == UcxMessageKind::kWelcome || peer.connection == 0;
  const UcxHeader header = {.kind = kind,
                            .origin = local_.origin(),
                            .connection = answers ? peer.remote_connection : peer.connection,
                            .body = body};
  auto send = std::make_unique<UcxSend>();
  send->peer = &peer;
  send->header = header.Serialize();
  sender_.Start(std::move(send), /*over_shm=*/kind == UcxMessageKind::kReady && peer.over_shm);
}

absl::Status UcxPeerTable::OnHello(const UcxHeader& hello) {
  const absl::StatusOr<UcxAddress> parsed =
      UcxAddress::Parse(hello.body, local_.options().fleet_secret);
  if (!parsed.ok() || parsed->origin != hello.origin || hello.origin == local_.origin() ||
      hello.connection == 0) {
    return absl::InvalidArgumentError("a greeting does not parse");
  }
  if (UcxPeer* known = FindByOrigin(hello.origin); known != nullptr) {
    if (known->remote_connection == hello.connection) return absl::OkStatus();
    if (known->remote_connection == 0) {
      // Both sides sent HELLO.
      known->remote_connection = hello.connection;
      const bool has_shm = known->state == UcxPeer::State::kGreeted || !parsed->shm_address.empty();
      if (has_shm && hello.origin < local_.origin()) Accept(*known, parsed->shm_address);
      return absl::OkStatus();
    }
    Lose(*known, absl::UnavailableError("the peer opened a newer connection"), /*silent=*/false);
  }
  if (peers_.size() >= kPeersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a greeting came when ", peers_.size(), " peers were connected, the limit"));
  }
  UcxPeer& peer = Add(*parsed);
  peer.remote_connection = hello.connection;
  const absl::Status opened = peer.control.Open(local_.control(), parsed->worker_address,
                                                &UcxPeerTable::OnEndpointError, &peer);
  if (opened.ok()) {
    Accept(peer, parsed->shm_address);
  } else {
    Lose(peer, opened, /*silent=*/true);
  }
  return absl::OkStatus();
}

void UcxPeerTable::Accept(UcxPeer& peer, const std::string& shm_address) {
  if (shm_address.empty()) {
    OnReady(peer, /*over_shm=*/false);
    return;
  }
  const absl::Status shm = OpenShmEndpoint(peer, shm_address);
  if (shm.ok()) {
    peer.state = UcxPeer::State::kWelcomed;
  } else {
    Log(LogLevel::kWarning, "cannot share memory with a KV peer that asked for it; using TCP",
        {{"peer", peer.id.value()}, {"host", peer.address.host}, {"reason", shm.message()}});
  }
  Greet(peer, UcxMessageKind::kWelcome, /*offer_shm=*/shm.ok());
  if (!shm.ok()) OnReady(peer, /*over_shm=*/false);
}

absl::Status UcxPeerTable::OnGreeting(UcxPeer& peer, const UcxHeader& greeting, bool over_shm) {
  // Of a connection that was given up since.
  if (greeting.connection != peer.connection && greeting.connection != peer.remote_connection) {
    return absl::OkStatus();
  }
  if (greeting.kind == UcxMessageKind::kReady) {
    if (peer.state == UcxPeer::State::kWelcomed) OnReady(peer, over_shm);
    return absl::OkStatus();
  }
  if (greeting.kind == UcxMessageKind::kWelcome && !over_shm) return OnWelcome(peer, greeting);
  if (greeting.kind == UcxMessageKind::kBye && !over_shm) {
    Lose(peer, absl::UnavailableError("the peer closed the connection"), /*silent=*/false);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a message of a kind that this release does not know");
}

absl::Status UcxPeerTable::OnWelcome(UcxPeer& peer, const UcxHeader& welcome) {
  const absl::StatusOr<UcxAddress> parsed =
      UcxAddress::Parse(welcome.body, local_.options().fleet_secret);
  if (!parsed.ok() || parsed->origin != peer.address.origin) {
    return absl::InvalidArgumentError("a welcome does not parse");
  }
  if (peer.state != UcxPeer::State::kGreeted || welcome.connection != peer.connection) {
    return absl::OkStatus();
  }
  peer.remote_connection = welcome.connection;
  const absl::Status shm = OpenShmEndpoint(peer, parsed->shm_address);
  if (!shm.ok() && !local_.MayUseTcpWith(peer.address)) {
    Greet(peer, UcxMessageKind::kBye);
    Lose(peer, shm, /*silent=*/false);
    return absl::OkStatus();
  }
  peer.over_shm = shm.ok();
  Greet(peer, UcxMessageKind::kReady);
  OnReady(peer, shm.ok());
  return absl::OkStatus();
}

void UcxPeerTable::OnReady(UcxPeer& peer, bool over_shm) {
  peer.state = UcxPeer::State::kOpen;
  peer.over_shm = over_shm;
  const UcxOptions& options = local_.options();
  const bool slow = !over_shm && options.transports == "auto" && !options.host.empty() &&
                    peer.address.host == options.host;
  Log(slow ? LogLevel::kWarning : LogLevel::kInfo,
      slow ? "KV peer on this host is reached over TCP, not shared memory" : "KV peer connected",
      {{"peer", peer.id.value()},
       {"node", peer.node},
       {"host", peer.address.host},
       {"transport", over_shm ? "shm" : "tcp"}});
  for (std::unique_ptr<UcxSend>& send : std::exchange(peer.waiting, {})) {
    sender_.Start(std::move(send), over_shm);
  }
}

// ---- Endings --------------------------------------------------------------------------------

void UcxPeerTable::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t status) {
  UcxPeer& peer = *static_cast<UcxPeer*>(arg);
  if (!peer.lost) peer.table->Lose(peer, UcxError("connection", status), /*silent=*/false);
}

void UcxPeerTable::Disconnect(PeerId peer) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second->silent = true;
  if (it->second->lost) return;
  Greet(*it->second, UcxMessageKind::kBye);
  Lose(*it->second, absl::CancelledError("disconnected"), /*silent=*/true);
}

void UcxPeerTable::LoseAll(const absl::Status& why) {
  for (auto& [id, peer] : peers_) {
    if (!peer->lost) Lose(*peer, why, /*silent=*/true);
  }
}

void UcxPeerTable::Lose(UcxPeer& peer, const absl::Status& why, bool silent) {
  if (!peer.lost) ++lost_count_;
  peer.lost = true;
  peer.lost_at = RealClock().Now();
  peer.silent = peer.silent || silent;
  peer.why = why;
  const auto it = by_origin_.find(peer.address.origin);
  if (it != by_origin_.end() && it->second == &peer) by_origin_.erase(it);
  for (std::unique_ptr<UcxSend>& send : std::exchange(peer.waiting, {})) {
    send->peer = nullptr;  // it never counted as in flight
    sender_.Finish(std::move(send), absl::CancelledError("the connection was closed"));
  }
}

bool UcxPeerTable::EndShmEndpoint(UcxPeer& peer) {
  if (peer.shm == nullptr) return true;
  UcxShmEndpoint& shm = *peer.shm;
  shm.endpoint.StartClose();
  const bool closed = shm.endpoint.Closed() && shm.sends.empty() && shm.receives.empty();
  if (!closed && RealClock().Now() < peer.lost_at + kShmCloseMax) return false;
  DestroyShmEndpoint(peer);
  return true;
}

// Once the worker is destroyed, nothing is in flight, whatever UCX has called back: received bytes
// land only when this process takes them from the worker's queue, and sent bytes either were copied
// into the other side's queue or never will be.
void UcxPeerTable::DestroyShmEndpoint(UcxPeer& peer) {
  UcxShmEndpoint& shm = *peer.shm;
  shm_peers_.erase(std::find(shm_peers_.begin(), shm_peers_.end(), &peer));
  shm.worker.reset();
  const absl::Status cancelled = absl::CancelledError("the connection was closed");
  for (UcxSend* send : std::exchange(shm.sends, {})) {
    sender_.Finish(std::unique_ptr<UcxSend>(send), cancelled);
  }
  for (UcxReceive* receive : std::exchange(shm.receives, {})) {
    receiver_.Finish(std::unique_ptr<UcxReceive>(receive), cancelled);
  }
  peer.shm.reset();
}

void UcxPeerTable::DestroyShmEndpoints() {
  for (auto& [id, peer] : peers_) {
    if (peer->shm != nullptr) DestroyShmEndpoint(*peer);
  }
}

std::vector<std::unique_ptr<UcxPeer>> UcxPeerTable::TakeEnded() {
  std::vector<std::unique_ptr<UcxPeer>> ended;
  if (!ending()) return ended;
  for (auto it = peers_.begin(); it != peers_.end();) {
    UcxPeer& peer = *it->second;
    if (!peer.lost) {
      ++it;
      continue;
    }
    peer.control.StartClose();
    const bool shm_ended = EndShmEndpoint(peer);
    if (!peer.control.Closed() || !shm_ended || peer.sends_in_flight > 0 ||
        peer.receives_in_flight > 0) {
      ++it;  // look again after the next progress
      continue;
    }
    ended.push_back(std::move(it->second));
    it = peers_.erase(it);
    --lost_count_;
  }
  return ended;
}

}  // namespace tandem::transfer
