// Goal: whatever an attacker does to the messages between two ends of a sealed connection, an end
// opens a frame only if the other one sealed it for it, at most once, and with its payload whole.
// The bytes of the input are choices: which message is sent, kept, delivered, repeated, returned to
// its sender or delivered with changes; some bytes are a message themselves.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/sealed_session.h"
#include "tests/fuzz/fuzz_random.h"

namespace tandem::transfer {
namespace {

constexpr size_t kMessagesMax = 64;  // each is kept, so that it can be repeated
constexpr int kStepsMax = 400;
const absl::Time kNow = absl::UnixEpoch();

// A frame and its payload, as they travel; `to` names the end that may open it.
struct Message {
  int to = 0;
  uint64_t lease = 0;  // 0: a handshake message
  v1::KvFrame frame;
  std::string payload;
};

class Wire {
 public:
  explicit Wire(fuzz::Bytes& bytes, bool encrypts) : random_(bytes) {
    for (int i = 0; i < 2; ++i) {
      options_[i] = {.agreement = {.fleet_secret = "fleet",
                                   .identity = TransportIdentity(i == 0 ? "a" : "b"),
                                   .encrypts = encrypts},
                     .limits = {.frames_max = 3}};
      ends_.push_back(std::make_unique<SealedSession>(options_[i]));
    }
  }

  void Step() {
    switch (random_.Below(6)) {
      case 0:
        return Offer(static_cast<int>(random_.Below(2)));
      case 1:
        return Seal(static_cast<int>(random_.Below(2)));
      case 2:
        return MakeUp();
      case 3:
        return Change();
      default:
        if (messages_.empty()) return;
        const Message& message = messages_[random_.Below(messages_.size())];
        const bool back = random_.Below(8) == 0;
        Deliver(message, back ? 1 - message.to : message.to, !back);
    }
  }

 private:
  void Keep(Message message) {
    if (messages_.size() < kMessagesMax) messages_.push_back(std::move(message));
  }
  void Offer(int from) {
    if (offered_[from] || started_[from]) return;
    offered_[from] = true;
    Message message{.to = 1 - from};
    *message.frame.mutable_handshake() = ends_[from]->Offer(options_[1 - from].agreement.identity);
    Keep(std::move(message));
  }
  void Seal(int from) {
    if (!ends_[from]->open()) return;
    Message message{.to = 1 - from, .lease = ++leases_};
    v1::KvFrame frame;
    frame.set_lease_id(message.lease);
    const std::string plain(random_.Below(40), static_cast<char>(message.lease));
    message.payload = plain;
    const auto* bytes = reinterpret_cast<const std::byte*>(plain.data());
    auto sealed = ends_[from]->Seal(&frame, {absl::MakeConstSpan(bytes, plain.size())},
                                    reinterpret_cast<std::byte*>(message.payload.data()), kNow);
    if (!sealed.ok()) std::abort();
    *message.frame.mutable_sealed() = *std::move(sealed);
    Keep(std::move(message));
  }
  // A message of bytes that the input chose.
  void MakeUp() {
    std::string bytes(random_.Below(64), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_.Next() >> 56);
    Message message{.to = static_cast<int>(random_.Below(2))};
    if (message.frame.ParseFromString(bytes)) Deliver(message, message.to, false);
  }
  void Change() {
    if (messages_.empty()) return;
    Message changed = messages_[random_.Below(messages_.size())];
    std::string bytes = changed.frame.SerializeAsString();
    if (changed.payload.empty() || random_.Below(2) == 0) {
      bytes[random_.Below(bytes.size())] ^= static_cast<char>(1 << random_.Below(8));
    } else {
      changed.payload[random_.Below(changed.payload.size())] ^= 1;
    }
    const std::string before = changed.frame.SerializeAsString();
    if (!changed.frame.ParseFromString(bytes)) return;
    // Fields that nobody reads may have changed.
    changed.frame.DiscardUnknownFields();
    const bool same_frame = changed.frame.SerializeAsString() == before;
    Deliver(changed, changed.to, same_frame);
  }
  // `whole`: the frame, not the payload, is as its sender made it, and is at its end.
  void Deliver(const Message& message, int to, bool whole) {
    SealedSession& end = *ends_[to];
    if (message.frame.has_handshake()) {
      started_[to] = true;
      const auto answer = end.OnHandshake(message.frame.handshake(), kNow);
      if (!answer.ok() || !answer->has_value()) return;
      Message back{.to = 1 - to};
      *back.frame.mutable_handshake() = **answer;
      return Keep(std::move(back));
    }
    if (!message.frame.has_sealed()) return;
    auto opened = end.Open(message.frame.sealed(), message.payload.size());
    if (!opened.ok() || !opened->frame.has_value()) return;
    if (!whole || !opened_.insert({to, message.lease}).second ||
        opened->frame->lease_id() != message.lease) {
      std::abort();
    }
    std::string payload = message.payload;
    auto* bytes = reinterpret_cast<std::byte*>(payload.data());
    if (!opened->payload.has_value()) return;  // its checksum would tell
    const bool right = opened->payload->Open({absl::MakeSpan(bytes, payload.size())});
    if (right && payload != std::string(payload.size(), static_cast<char>(message.lease))) {
      std::abort();
    }
  }

  fuzz::FuzzRandom random_;
  SealedSession::Options options_[2];
  std::vector<std::unique_ptr<SealedSession>> ends_;
  bool offered_[2] = {false, false};
  bool started_[2] = {false, false};  // heard something, so it may not offer
  std::vector<Message> messages_;
  std::set<std::pair<int, uint64_t>> opened_;
  uint64_t leases_ = 0;
};

}  // namespace
}  // namespace tandem::transfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  tandem::fuzz::Bytes bytes = {data, size, 1};
  tandem::transfer::Wire wire(bytes, data[0] % 2 == 0);
  for (int i = 0; i < tandem::transfer::kStepsMax && !bytes.used_up(); ++i) wire.Step();
  return 0;
}
