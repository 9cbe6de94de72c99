// Goal: of every bit that the network flips in what two KV planes send each other over real TCP
// sockets, nothing wrong is delivered: the frame is dropped, or its payload ends as damaged; what
// comes after it is delivered whole. With encryption and without.
//
// The bits are flipped where UCX reads the socket: by a recv in front of the C library's. (A relay
// would not do: a connection's proof covers both ends' addresses.) UCX's own headers stay as they
// are, since UCX trusts those, and ends the process on some that cannot be.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/ucx_transport.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

// Follows what arrives on accepted sockets, and flips a bit of the next long message when armed. A
// connection begins with the guard's proof and 8 bytes of magic; then come messages: an id of one
// byte, a length of four, and so many bytes (uct/tcp of UCX 1.13).
class BitFlipper {
 public:
  static constexpr uint32_t kMessageBytesMin = 512;
  // Kept as they are, at both ends of a message.
  static constexpr uint32_t kUcxBytes = 64;

  explicit BitFlipper(uint64_t seed) : random_(seed) {}

  void Arm() {
    absl::MutexLock lock(&mutex_);
    armed_ = true;
  }
  int64_t flips() const {
    absl::MutexLock lock(&mutex_);
    return flips_;
  }
  int64_t bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }

  // `asked`: what recv was asked for.
  void OnReceived(int fd, char* bytes, size_t size, size_t asked) {
    absl::MutexLock lock(&mutex_);
    if (asked == kProofBytes) {  // of a socket that was just accepted
      streams_[fd] = Stream();
      return;
    }
    const auto stream = streams_.find(fd);
    if (stream == streams_.end()) return;
    bytes_ += static_cast<int64_t>(size);
    Follow(stream->second, bytes, size);
  }

 private:
  static constexpr size_t kProofBytes = 48;  // of ucx_socket_guard.cc
  struct Stream {
    std::string head;  // of the magic or of a message's header, while it is not complete
    bool after_magic = false;
    uint32_t at = 0, length = 0;  // within the current message
    int64_t flip_at = -1;
  };

  void Follow(Stream& stream, char* bytes, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < size;) {
      if (stream.at < stream.length) {
        const auto part = std::min<size_t>(size - i, stream.length - stream.at);
        const int64_t flip = stream.flip_at - stream.at;
        if (stream.flip_at >= 0 && flip >= 0 && flip < static_cast<int64_t>(part)) {
          bytes[i + static_cast<size_t>(flip)] ^= static_cast<char>(1 << (random_() % 8));
          ++flips_;
        }
        stream.at += static_cast<uint32_t>(part);
        i += part;
        continue;
      }
      stream.head += bytes[i++];
      if (stream.head.size() < (stream.after_magic ? 5u : 8u)) continue;
      if (stream.after_magic) BeginMessage(stream);
      stream.after_magic = true;
      stream.head.clear();
    }
  }
  void BeginMessage(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::memcpy(&stream.length, stream.head.data() + 1, sizeof stream.length);
    stream.at = 0;
    stream.flip_at = -1;
    if (!armed_ || stream.length < kMessageBytesMin) return;
    armed_ = false;
    stream.flip_at = static_cast<int64_t>(kUcxBytes + random_() % (stream.length - 2 * kUcxBytes));
  }

  mutable absl::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t flips_ ABSL_GUARDED_BY(mutex_) = 0, bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::atomic<BitFlipper*> flipper_in_use{nullptr};

extern "C" ssize_t recv(int fd, void* bytes, size_t size, int flags) {
  const auto got =
      static_cast<ssize_t>(::syscall(SYS_recvfrom, fd, bytes, size, flags, nullptr, nullptr));
  BitFlipper* const flipper = flipper_in_use;
  if (flipper != nullptr && got > 0)
    flipper->OnReceived(fd, static_cast<char*>(bytes), static_cast<size_t>(got), size);
  return got;
}

constexpr char kSecret[] = "fleet";
// Beyond this a lease id is a marker's: a frame without payload, sent behind one that may be
// flipped.
constexpr uint64_t kMarkers = 1'000'000;

// Takes frames and payloads, and says what a KV receiver would make of them.
struct Receiver final : KvTransport::Listener {
  std::optional<ScatterList> OnFrame(PeerId, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    frames.push_back(frame.lease_id());
    checksums[receive_id] = {frame.lease_id(), frame.data().payload_checksum()};
    if (payload_bytes == 0) return std::nullopt;
    std::vector<std::byte>& place = places[receive_id];
    place.assign(payload_bytes, std::byte{0});
    return ScatterList{absl::MakeSpan(place)};
  }
  void OnPayload(uint64_t receive_id, const absl::Status& status, const ReceiveInterval&) override {
    const auto [lease, checksum] = checksums[receive_id];
    const std::vector<std::byte> payload = std::move(places[receive_id]);
    places.erase(receive_id);
    if (!status.ok()) {
      damaged.push_back(lease);
    } else if (!authenticates && PayloadChecksum({{payload}}) != checksum) {
      damaged.push_back(lease);
    } else {
      delivered[lease] = payload;
    }
  }
  void OnPeerLost(PeerId, const absl::Status&) override { ++lost; }

  bool authenticates = false;
  std::vector<uint64_t> frames, damaged;
  std::map<uint64_t, std::vector<std::byte>> places, delivered;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> checksums;
  int lost = 0;
};

std::unique_ptr<KvTransport> NewTransport(bool encrypts) {
  return NewSealedTransport(
      {.fleet_secret = kSecret, .encrypts = encrypts},
      *NewUcxTransport({.transports = "tcp", .host = "h", .fleet_secret = kSecret}));
}

class BitFlips : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const uint64_t seed = std::random_device()();
    std::printf("seed %lu\n", static_cast<unsigned long>(seed));
    random_.seed(seed);
    flipper_ = std::make_unique<BitFlipper>(random_());
    flipper_in_use = flipper_.get();
    sender_ = NewTransport(GetParam());
    sender_->SetListener(&sent_);
    receiver_ = NewTransport(GetParam());
    receiver_->SetListener(&received_);
    received_.authenticates = receiver_->authenticates_payloads();
    ASSERT_OK_AND_ASSIGN(peer_, sender_->Connect({.node = NodeId("receiver"),
                                                  .incarnation = Incarnation(1),
                                                  .transport_address = receiver_->address(),
                                                  .host = "another host"}));
  }
  void TearDown() override {
    sender_->SetListener(nullptr);
    receiver_->SetListener(nullptr);
    sender_.reset();
    receiver_.reset();
    flipper_in_use = nullptr;
  }
  // Sends a frame, its payload if it has one, and returns when the marker behind it has come.
  void SendAndMark(uint64_t lease, const std::vector<std::byte>& payload) {
    v1::KvFrame frame;
    frame.set_lease_id(lease);
    frame.mutable_data()->set_payload_checksum(PayloadChecksum({{payload}}));
    int done = 0;
    const auto count = [&done](const absl::Status&) { ++done; };
    sender_->Send(peer_, frame, {absl::MakeConstSpan(payload)}, count);
    v1::KvFrame marker;
    marker.set_lease_id(kMarkers + lease);
    sender_->Send(peer_, marker, {}, count);
    const auto ended = [&] {
      return done == 2 && !received_.frames.empty() &&
             received_.frames.back() == kMarkers + lease && received_.places.empty();
    };
    while (!ended() && sent_.lost + received_.lost == 0) {
      sender_->Progress();
      receiver_->Progress();
    }
  }

  std::mt19937_64 random_;
  Receiver sent_, received_;
  std::unique_ptr<BitFlipper> flipper_;
  std::unique_ptr<KvTransport> sender_, receiver_;
  PeerId peer_;
};

INSTANTIATE_TEST_SUITE_P(Encryption, BitFlips, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Encrypted" : "Plain"; });

TEST_P(BitFlips, NothingWrongIsDelivered) {
  constexpr int kFrames = 400;
  std::map<uint64_t, std::vector<std::byte>> sent;
  std::vector<uint64_t> flipped;
  for (uint64_t lease = 1; lease <= kFrames; ++lease) {
    std::vector<std::byte>& payload = sent[lease];
    payload.resize(1024 + random_() % (lease % 4 == 0 ? 300'000 : 8'000));
    for (std::byte& b : payload) b = static_cast<std::byte>(random_());
    const int64_t flips_before = flipper_->flips();
    if (lease % 2 == 0) flipper_->Arm();
    SendAndMark(lease, payload);
    ASSERT_EQ(sent_.lost + received_.lost, 0) << "the connection did not survive a flipped bit";
    if (flipper_->flips() > flips_before) flipped.push_back(lease);
  }
  std::printf("%ld bytes, %zu flips: %zu payloads damaged, %zu frames dropped\n",
              static_cast<long>(flipper_->bytes()), flipped.size(), received_.damaged.size(),
              flipped.size() - received_.damaged.size());
  EXPECT_GE(flipped.size(), kFrames / 2 - 2u);
  size_t without_effect = 0;
  for (const auto& [lease, payload] : received_.delivered) {
    EXPECT_EQ(payload, sent[lease]) << "frame " << lease;
    without_effect += std::count(flipped.begin(), flipped.end(), lease);
  }
  // A flip in what UCX puts around a message may change nothing that anybody reads.
  EXPECT_LE(without_effect, flipped.size() / 20) << "flips that nothing detected";
  EXPECT_EQ(received_.delivered.size(), kFrames - flipped.size() + without_effect)
      << "and all others came";
}

}  // namespace
}  // namespace tandem::transfer
