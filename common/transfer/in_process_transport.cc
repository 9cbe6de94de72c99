#include "common/transfer/in_process_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/runtime/clock.h"

namespace tandem::transfer {
namespace {

using ConnectionId = uint64_t;
using Done = absl::AnyInvocable<void(const absl::Status&)>;

struct Node;

// A frame that waits in a transport's inbox until its next Progress().
struct ArrivedFrame {
  ConnectionId connection = 0;
  Node* sender = nullptr;
  v1::KvFrame frame;
  GatherList payload;  // the sender's memory
  Done done;
};
struct SendFinished {
  Done done;
  absl::Status status;
};
struct ConnectionClosed {
  ConnectionId connection = 0;
};
using Item = std::variant<ArrivedFrame, SendFinished, ConnectionClosed>;

// One transport, as the others see it. Guarded by the network's mutex.
struct Node {
  std::string address;
  // Bound: the senders' bytes and control frames in flight.
  std::deque<Item> inbox;
  int64_t borrowed = 0;  // payloads of this node that another thread is copying from
  bool woken = false;
};

struct Connection {
  Node* ends[2] = {nullptr, nullptr};  // [0] connected to [1]
};

}  // namespace

struct InProcessNetwork::State {
  absl::Mutex mutex;
  // Bound: the nodes of the process.
  std::map<std::string, Node*> nodes ABSL_GUARDED_BY(mutex);
  // Bound: pairs of nodes.
  std::map<ConnectionId, Connection> connections ABSL_GUARDED_BY(mutex);
  uint64_t next_id ABSL_GUARDED_BY(mutex) = 1;

  // Ends a connection: frames that did not arrive complete with an error at their sender; both ends
  // but `closer` get OnPeerLost.
  void Close(ConnectionId id, const Node* closer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

void InProcessNetwork::State::Close(ConnectionId id, const Node* closer) {
  const auto it = connections.find(id);
  if (it == connections.end()) return;
  for (Node* end : it->second.ends) {
    std::deque<Item> kept;
    for (Item& item : end->inbox) {
      ArrivedFrame* frame = std::get_if<ArrivedFrame>(&item);
      if (frame == nullptr || frame->connection != id) {
        kept.push_back(std::move(item));
      } else if (frame->sender != end) {
        frame->sender->inbox.push_back(SendFinished{
            std::move(frame->done), absl::CancelledError("the connection was closed")});
      }
    }
    // Nothing was appended to this inbox meanwhile: Connect refuses connections to oneself.
    end->inbox = std::move(kept);
  }
  for (Node* end : it->second.ends) {
    if (end != closer) end->inbox.push_back(ConnectionClosed{id});
  }
  connections.erase(it);
}

InProcessNetwork::InProcessNetwork() : state_(std::make_unique<State>()) {}
InProcessNetwork::~InProcessNetwork() = default;

namespace {

class InProcessTransport final : public KvTransport {
 public:
  explicit InProcessTransport(InProcessNetwork::State& network) : network_(network) {
    absl::MutexLock lock(&network_.mutex);
    node_.address = address_ = absl::StrCat("inproc:", network_.next_id++);
    network_.nodes[address_] = &node_;
  }

  ~InProcessTransport() override {
    std::deque<Item> left;
    {
      absl::MutexLock lock(&network_.mutex);
      network_.nodes.erase(address_);
      for (const auto& [connection, peer] : peer_of_) network_.Close(connection, &node_);
      // Connections whose first frame was not seen yet.
      std::vector<ConnectionId> unseen;
      for (const auto& [id, connection] : network_.connections) {
        if (connection.ends[0] == &node_ || connection.ends[1] == &node_) unseen.push_back(id);
      }
      for (const ConnectionId id : unseen) network_.Close(id, &node_);
      network_.mutex.Await(absl::Condition(
          +[](Node* node) { return node->borrowed == 0; }, &node_));
      left = std::move(node_.inbox);
    }
    for (Item& item : left) {
      if (SendFinished* finished = std::get_if<SendFinished>(&item)) {
        finished->done(finished->status);
      }
    }
  }

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }

  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override {
    if (peer.transport_address == address_) {
      return absl::InvalidArgumentError(
          absl::StrCat(address_, ": a KV transport cannot connect to itself"));
    }
    if (const auto it = by_address_.find(peer.transport_address); it != by_address_.end()) {
      return it->second;
    }
    absl::MutexLock lock(&network_.mutex);
    const auto node = network_.nodes.find(peer.transport_address);
    if (node == network_.nodes.end()) {
      return absl::UnavailableError(absl::StrCat("no transport at '", peer.transport_address,
                                                 "' in this process (node ", peer.node.value(),
                                                 ")"));
    }
    const ConnectionId id = network_.next_id++;
    network_.connections[id].ends[0] = &node_;
    network_.connections[id].ends[1] = node->second;
    return AddPeer(id, peer.transport_address);
  }

  void Disconnect(PeerId peer) override {
    const auto it = connection_of_.find(peer);
    if (it == connection_of_.end()) return;
    const ConnectionId connection = it->second;
    {
      absl::MutexLock lock(&network_.mutex);
      network_.Close(connection, &node_);
    }
    RemovePeer(connection);
  }

  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) override {
    const auto it = connection_of_.find(peer);
    absl::MutexLock lock(&network_.mutex);
    const auto connection = it == connection_of_.end() ? network_.connections.end()
                                                       : network_.connections.find(it->second);
    if (connection == network_.connections.end()) {
      node_.inbox.push_back(SendFinished{std::move(done), absl::UnavailableError(absl::StrCat(
                                                              "peer ", peer.value(), " is gone"))});
      return;
    }
    const Connection& ends = connection->second;
    Node* receiver = ends.ends[0] == &node_ ? ends.ends[1] : ends.ends[0];
    receiver->inbox.push_back(ArrivedFrame{.connection = it->second,
                                           .sender = &node_,
                                           .frame = frame,
                                           .payload = std::move(payload),
                                           .done = std::move(done)});
  }

  std::string TransportName(PeerId) const override { return "inproc"; }

  bool Progress() override {
    // Only the frames that are there now; answers to them wait for the next call.
    size_t count = 0;
    {
      absl::MutexLock lock(&network_.mutex);
      count = node_.inbox.size();
    }
    bool moved = false;
    for (size_t i = 0; i < count; ++i) {
      Item item;
      std::string sender_address;
      {
        absl::MutexLock lock(&network_.mutex);
        if (node_.inbox.empty()) break;  // a close took some away
        item = std::move(node_.inbox.front());
        node_.inbox.pop_front();
        if (const ArrivedFrame* frame = std::get_if<ArrivedFrame>(&item)) {
          ++frame->sender->borrowed;
          sender_address = frame->sender->address;
        }
      }
      moved = true;
      Process(item, sender_address);
    }
    return moved;
  }

  void Wait(absl::Duration timeout) override {
    absl::MutexLock lock(&network_.mutex);
    network_.mutex.AwaitWithTimeout(
        absl::Condition(
            +[](Node* node) { return node->woken || !node->inbox.empty(); }, &node_),
        timeout);
    node_.woken = false;
  }

  void Wake() override {
    absl::MutexLock lock(&network_.mutex);
    node_.woken = true;
  }

 private:
  PeerId AddPeer(ConnectionId connection, const std::string& address) {
    const PeerId peer(next_peer_++);
    connection_of_[peer] = connection;
    peer_of_[connection] = peer;
    by_address_.emplace(address, peer);
    return peer;
  }

  void RemovePeer(ConnectionId connection) {
    const auto it = peer_of_.find(connection);
    if (it == peer_of_.end()) return;
    const PeerId peer = it->second;
    absl::erase_if(by_address_, [peer](const auto& entry) { return entry.second == peer; });
    connection_of_.erase(peer);
    peer_of_.erase(it);
  }

  void Process(Item& item, const std::string& sender_address) {
    if (SendFinished* finished = std::get_if<SendFinished>(&item)) {
      finished->done(finished->status);
    } else if (ConnectionClosed* closed = std::get_if<ConnectionClosed>(&item)) {
      const auto it = peer_of_.find(closed->connection);
      if (it == peer_of_.end()) return;
      const PeerId peer = it->second;
      RemovePeer(closed->connection);
      if (listener_ != nullptr) {
        listener_->OnPeerLost(peer, absl::UnavailableError("the peer closed the connection"));
      }
    } else {
      Receive(std::get<ArrivedFrame>(item), sender_address);
    }
  }

  void Receive(ArrivedFrame& arrived, const std::string& sender_address) {
    const auto known = peer_of_.find(arrived.connection);
    const PeerId from =
        known != peer_of_.end() ? known->second : AddPeer(arrived.connection, sender_address);
    size_t bytes = 0;
    for (const auto piece : arrived.payload) bytes += piece.size();
    const uint64_t receive_id = next_receive_++;
    std::optional<ScatterList> place;
    if (listener_ != nullptr) place = listener_->OnFrame(from, arrived.frame, bytes, receive_id);
    if (bytes > 0 && place.has_value()) {
      const absl::Time began = RealClock().Now();
      Copy(arrived.payload, *place);
      listener_->OnPayload(receive_id, absl::OkStatus(),
                           {.began = began, .landed = RealClock().Now()});
    }
    absl::MutexLock lock(&network_.mutex);
    --arrived.sender->borrowed;
    arrived.sender->inbox.push_back(SendFinished{std::move(arrived.done), absl::OkStatus()});
  }

  static void Copy(const GatherList& from, const ScatterList& to) {
    size_t piece = 0, offset = 0;
    for (absl::Span<const std::byte> source : from) {
      while (!source.empty()) {
        TANDEM_CHECK(piece < to.size(), "the place is smaller than the payload");
        const size_t bytes = std::min(source.size(), to[piece].size() - offset);
        std::memcpy(to[piece].data() + offset, source.data(), bytes);
        source.remove_prefix(bytes);
        offset += bytes;
        if (offset == to[piece].size()) {
          ++piece;
          offset = 0;
        }
      }
    }
    TANDEM_CHECK(piece == to.size(), "the place is larger than the payload");
  }

  InProcessNetwork::State& network_;
  Node node_;
  std::string address_;
  Listener* listener_ = nullptr;
  uint64_t next_peer_ = 1;
  uint64_t next_receive_ = 1;
  // Bound: the nodes of the process.
  absl::flat_hash_map<PeerId, ConnectionId> connection_of_;
  absl::flat_hash_map<ConnectionId, PeerId> peer_of_;
  absl::flat_hash_map<std::string, PeerId> by_address_;
};

}  // namespace

std::unique_ptr<KvTransport> NewInProcessTransport(InProcessNetwork& network) {
  return std::make_unique<InProcessTransport>(network.state());
}

}  // namespace tandem::transfer
