#include "router/process/fleet_service.h"

#include <atomic>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/outbox.h"
#include "common/rpc/status.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "router/front_end/failed_keys.h"

namespace tandem::router {
namespace {

// A node that leaves this many messages unread is disconnected and must rejoin.
constexpr size_t kOutboxMax = 65536;
constexpr absl::Duration kRefusalsLoggedEvery = absl::Seconds(1);

// Whether a node registers in the role that its certificate names.
absl::Status CheckRegisteredRole(rpc::PeerRole certified, const v1::Registration& registration) {
  const bool is_prefill = certified == rpc::PeerRole::kPrefill;
  const v1::NodeRole expected = is_prefill ? v1::NODE_ROLE_PREFILL : v1::NODE_ROLE_DECODE;
  if (registration.role() == expected) return absl::OkStatus();
  const absl::string_view asked = registration.role() == v1::NODE_ROLE_PREFILL  ? "prefill"
                                  : registration.role() == v1::NODE_ROLE_DECODE ? "decode"
                                                                                : "unknown";
  return absl::PermissionDeniedError(
      absl::StrCat("node '", absl::Utf8SafeCHexEscape(registration.node_id().substr(0, 128)),
                   "' registers with the role ", asked, ", expected ", rpc::RoleName(certified),
                   ", the role of its certificate"));
}

}  // namespace

class FleetService::Stream final
    : public grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  Stream(FleetService& owner, NodeKey node, Expected expected)
      : owner_(owner), node_(node), expected_(std::move(expected)), outbox_(kOutboxMax) {}

  void Start() {
    StartSendInitialMetadata();  // the challenge
    Read();
  }

  void Send(v1::RouterMessage message) {
    if (message.has_welcome() && !join_proof_.empty())
      rpc::ProveWelcome(owner_.options_.secret, join_proof_, *message.mutable_welcome());
    message.set_sequence_number(++sequence_number_);
    if (outbox_.Add(std::move(message))) {
      StartWrite(outbox_.current());
    } else if (outbox_.overflowed()) {
      End(absl::ResourceExhaustedError(
          absl::StrCat("the node left more than ", kOutboxMax, " messages of this router unread")));
    }
  }

  // The first caller decides the status. gRPC's Finish follows when no write is in progress.
  void End(const absl::Status& status) {
    if (ending_.exchange(true)) return;
    end_status_ = status;
    if (outbox_.Close()) FinishOnce();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(admitted_
              ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    "the stream ended without a registration, expected one as its first message"));
      return;
    }
    if (ending_) return;
    if (!admitted_) {
      if (absl::Status why = owner_.Admit(node_, expected_, *incoming_); !why.ok()) {
        End(why);
        return;
      }
      const v1::Registration& registration = incoming_->registration();
      if (!owner_.options_.secret.empty() && !registration.nonce().empty())
        join_proof_ = registration.proof();
      admitted_ = true;
      owner_.inbox_.Push(NodeRegistered{node_, registration});
    } else if (incoming_->has_registration()) {
      // What the first one has proven says nothing of another role or id.
      End(absl::InvalidArgumentError(absl::StrCat(
          "node '", absl::Utf8SafeCHexEscape(incoming_->registration().node_id().substr(0, 128)),
          "' registered twice on one stream, expected one registration")));
      return;
    } else {
      owner_.inbox_.Push(NodeSpoke{node_, std::move(arena_), incoming_});
    }
    Read();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) End(absl::UnavailableError("cannot write to the node's stream"));
    if (outbox_.Written()) {
      StartWrite(outbox_.current());
    } else if (outbox_.closed()) {
      FinishOnce();
    }
  }
  void OnCancel() override { End(absl::CancelledError("the node ended the stream")); }
  void OnDone() override {
    Inbox& inbox = owner_.inbox_;
    const bool admitted = admitted_;
    NodeGone gone{node_, end_status_.ok() ? absl::UnavailableError("the node left") : end_status_};
    owner_.Ended(node_);
    // Ended() has deleted this object. Its place is free.
    if (admitted) inbox.Push(std::move(gone));
  }

 private:
  void Read() {
    arena_ = std::make_unique<google::protobuf::Arena>();
    incoming_ = google::protobuf::Arena::CreateMessage<v1::NodeMessage>(arena_.get());
    StartRead(incoming_);
  }

  void FinishOnce() {
    if (!finished_.exchange(true)) Finish(rpc::ToGrpc(end_status_));
  }

  FleetService& owner_;
  const NodeKey node_;
  const Expected expected_;
  std::string join_proof_;  // what the Welcome answers; written before the registration goes on
  bool admitted_ = false;   // written by reads, of which one is under way at a time
  std::unique_ptr<google::protobuf::Arena> arena_;  // of the message being read
  v1::NodeMessage* incoming_ = nullptr;
  rpc::Outbox<v1::RouterMessage> outbox_;
  uint64_t sequence_number_ = 0;  // guarded by the owner's mutex
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  absl::Status end_status_;  // written once, before the outbox closes
};

namespace {

// Refuses a stream at once.
class RefusedStream final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(rpc::ToGrpc(status)); }
  void OnDone() override { self_.reset(); }
  void Keep(std::unique_ptr<RefusedStream> self) { self_ = std::move(self); }

 private:
  std::unique_ptr<RefusedStream> self_;  // gRPC owns the reactor until OnDone
};

}  // namespace

FleetService::FleetService(Inbox& inbox, const Options& options)
    : inbox_(inbox), options_(options) {}
FleetService::~FleetService() = default;

grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage>* FleetService::Join(
    grpc::CallbackServerContext* context) {
  Expected expected = {.challenge = rpc::NewChallenge()};
  context->AddInitialMetadata(rpc::kChallengeKey, expected.challenge);
  absl::StatusOr<rpc::PeerIdentity> identity = rpc::PeerIdentity();
  if (options_.roles_from_certificates) {
    identity = rpc::IdentityOf(rpc::UrisOf(*context->auth_context()));
    if (identity.ok()) expected.role = identity->role;
  }
  absl::MutexLock lock(&mutex_);
  absl::Status status = closed_;
  if (status.ok()) status = identity.status();
  if (status.ok() && streams_.size() >= options_.streams_max) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        streams_.size(), " nodes' streams are open, the limit is ", options_.streams_max));
    NoteRefused(status);
  }
  if (!status.ok()) {
    auto refused = std::make_unique<RefusedStream>(status);
    RefusedStream* reactor = refused.get();
    reactor->Keep(std::move(refused));
    return reactor;
  }
  if (strangers_.size() >= options_.strangers_max) {
    EndStranger(strangers_.ToGiveUp(),
                absl::ResourceExhaustedError(
                    absl::StrCat(strangers_.size(), " streams have not registered, the limit is ",
                                 options_.strangers_max)));
  }
  const NodeKey node(next_key_++);
  auto stream = std::make_unique<Stream>(*this, node, std::move(expected));
  Stream* reactor = stream.get();
  streams_[node] = std::move(stream);
  strangers_.Add(node, SourceOfGrpcPeer(context->peer()), RealClock().Now());
  reactor->Start();
  return reactor;
}

absl::Status FleetService::Admit(NodeKey node, const Expected& expected,
                                 const v1::NodeMessage& message) {
  absl::Status status;
  if (!message.has_registration()) {
    status = absl::InvalidArgumentError("the first message of a stream must be a registration");
  } else if (!options_.secret.empty()) {
    status = rpc::CheckJoinProof(options_.secret, expected.challenge, message.registration());
  }
  if (status.ok() && expected.role.has_value())
    status = CheckRegisteredRole(*expected.role, message.registration());
  absl::MutexLock lock(&mutex_);
  if (!strangers_.Erase(node)) return absl::CancelledError("the stream was ended");
  if (!status.ok()) NoteRefused(status);
  return status;
}

void FleetService::NoteRefused(const absl::Status& why) {
  ++streams_refused_;
  last_refused_ = why;
}

void FleetService::EndStranger(NodeKey node, const absl::Status& why) {
  strangers_.Erase(node);
  NoteRefused(why);
  if (const auto found = streams_.find(node); found != streams_.end()) found->second->End(why);
}

void FleetService::OnTick(absl::Time now) {
  absl::Status last;
  {
    absl::MutexLock lock(&mutex_);
    while (const auto overdue = strangers_.OpenedBy(now - options_.register_within)) {
      EndStranger(*overdue, absl::DeadlineExceededError(
                                absl::StrCat("no registration came within ",
                                             absl::FormatDuration(options_.register_within))));
    }
    last = last_refused_;
  }
  const int64_t refused = streams_refused_;
  if (refused == refusals_logged_ || now < next_log_) return;
  Log(LogLevel::kWarning, "refused streams at the fleet's port",
      {{"count", refused - refusals_logged_}, {"last", last.message()}});
  refusals_logged_ = refused;
  next_log_ = now + kRefusalsLoggedEvery;
}

void FleetService::Send(NodeKey node, v1::RouterMessage message) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = streams_.find(node); found != streams_.end()) {
    found->second->Send(std::move(message));
  }
}

void FleetService::Disconnect(NodeKey node, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = streams_.find(node); found != streams_.end()) {
    found->second->End(status);
  }
}

void FleetService::DisconnectAll(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  closed_ = status;
  for (auto& [node, stream] : streams_) stream->End(status);
}

void FleetService::Ended(NodeKey node) {
  std::unique_ptr<Stream> ended;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  if (strangers_.Erase(node))
    NoteRefused(absl::CancelledError("the node left without registering"));
  const auto found = streams_.find(node);
  if (found == streams_.end()) return;
  ended = std::move(found->second);
  streams_.erase(found);
}

}  // namespace tandem::router
