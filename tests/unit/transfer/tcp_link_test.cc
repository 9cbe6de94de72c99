// Goal: messages over TCP arrive whole and in order however the network cuts them, nothing that
// was changed, left out or sent again on the way is taken for a message, and a slow reader costs
// bounded memory.
#include "common/transfer/tcp_link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/runtime/random.h"

namespace tandem::transfer {
namespace {

constexpr LinkLimits kLimits = {.message_bytes_max = 5000, .ring_bytes = 1 << 16};
constexpr size_t kLongestRecord = 8 + 5000 + 16;

TcpLinkKeys Keys(char send, char receive) {
  return {.send = std::string(kTcpLinkKeyBytes, send),
          .receive = std::string(kTcpLinkKeyBytes, receive)};
}

// TCP sockets that are connected to each other on loopback.
std::pair<OwnedDescriptor, OwnedDescriptor> ConnectedSockets() {
  const OwnedDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address = {};
  address.ss_family = AF_INET;
  socklen_t bytes = 16;  // of an IPv4 address; port 0 of any address
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), general, bytes), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), general, &bytes), 0);
  OwnedDescriptor first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(first.get(), general, bytes), 0);
  OwnedDescriptor second(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(first), std::move(second)};
}

absl::Status Send(MessageLink& link, const std::string& text) {
  const absl::Span<const std::byte> piece(reinterpret_cast<const std::byte*>(text.data()),
                                          text.size());
  return link.Send({&piece, 1});
}

// Waits for the next message or failure.
absl::StatusOr<std::string> Receive(MessageLink& link) {
  while (true) {
    auto message = link.Receive();
    if (!message.ok()) return message.status();
    if (message->has_value()) {
      return std::string(reinterpret_cast<const char*>((*message)->data()), (*message)->size());
    }
    pollfd wait = {.fd = link.descriptor(), .events = POLLIN, .revents = 0};
    if (link.PrepareSleep()) {
      EXPECT_EQ(::poll(&wait, 1, 20000), 1);
    }
    link.EndSleep();
  }
}

struct Pair {
  Pair() {
    auto sockets = ConnectedSockets();
    first = *TcpLink::Create(std::move(sockets.first), Keys('a', 'b'), kLimits);
    second = *TcpLink::Create(std::move(sockets.second), Keys('b', 'a'), kLimits);
  }
  std::unique_ptr<TcpLink> first, second;
};

// A link whose other end is a socket of the test's: it takes a sender's bytes as they are.
struct Tapped {
  Tapped() {
    auto to_sender = ConnectedSockets(), to_receiver = ConnectedSockets();
    sender = *TcpLink::Create(std::move(to_sender.first), Keys('a', 'b'), kLimits);
    receiver = *TcpLink::Create(std::move(to_receiver.first), Keys('b', 'a'), kLimits);
    from_sender = std::move(to_sender.second);
    into_receiver = std::move(to_receiver.second);
  }
  std::string Record(const std::string& message) {
    EXPECT_TRUE(Send(*sender, message).ok());
    std::string bytes(8 + (message.size() + 7) / 8 * 8 + 16, '\0');
    EXPECT_EQ(::recv(from_sender.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  void Put(const std::string& bytes) {
    EXPECT_EQ(::send(into_receiver.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::unique_ptr<TcpLink> sender, receiver;
  OwnedDescriptor from_sender, into_receiver;
};

TEST(TcpLinkTest, MessagesOfManySizesArriveInBothDirections) {
  Pair pair;
  for (size_t size = 1; size <= kLimits.message_bytes_max; size += size < 40 ? 1 : 331) {
    const std::string there(size, static_cast<char>(size)), back(size, static_cast<char>(~size));
    ASSERT_TRUE(Send(*pair.first, there).ok()) << size;
    ASSERT_TRUE(Send(*pair.second, back).ok()) << size;
    ASSERT_EQ(*Receive(*pair.second), there);
    ASSERT_EQ(*Receive(*pair.first), back);
  }
  ASSERT_TRUE(Send(*pair.first, std::string(kLimits.message_bytes_max, 'x')).ok());
  EXPECT_EQ(Receive(*pair.second)->size(), kLimits.message_bytes_max);
  EXPECT_EQ(Send(*pair.first, "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(*pair.first, std::string(kLimits.message_bytes_max + 1, 'x')).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TcpLinkTest, MessagesBeginAtMultiplesOfEight) {
  Pair pair;
  for (const size_t size : {1, 7, 13, 4999}) {
    ASSERT_TRUE(Send(*pair.first, std::string(size, 'x')).ok());
  }
  for (int i = 0; i < 4;) {
    const auto message = *pair.second->Receive();
    if (!message.has_value()) continue;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(message->data()) % 8, 0u);
    ++i;
  }
}

TEST(TcpLinkTest, BytesThatComeOneByOneAreOneMessage) {
  Tapped tapped;
  for (const std::string& message : {std::string("seventeen letters"), std::string("more")}) {
    const std::string record = tapped.Record(message);
    for (const char byte : record) {
      ASSERT_FALSE(tapped.receiver->Receive()->has_value());
      tapped.Put(std::string(1, byte));
    }
    EXPECT_EQ(*Receive(*tapped.receiver), message);
  }
}

TEST(TcpLinkTest, EveryChangedByteIsNoticed) {
  const size_t bytes = Tapped().Record("a message").size();
  for (size_t i = 0; i < bytes; ++i) {
    Tapped tapped;
    std::string record = tapped.Record("a message");
    record[i] = static_cast<char>(record[i] ^ 0x10);
    tapped.Put(record);
    ::shutdown(tapped.into_receiver.get(), SHUT_WR);  // a longer length waits for more
    const auto message = Receive(*tapped.receiver);
    EXPECT_FALSE(message.ok()) << "byte " << i;
    EXPECT_FALSE(tapped.receiver->Receive().ok()) << "the link stays failed";
  }
}

// Equal messages look different each time, and like none of their bytes.
TEST(TcpLinkTest, AReaderOfTheNetworkSeesLengthsOnly) {
  Tapped tapped;
  const std::string message(64, 'q');
  const std::string first = tapped.Record(message), second = tapped.Record(message);
  for (const std::string& record : {first, second}) {
    EXPECT_EQ(record.substr(8).find("qqqq"), std::string::npos);
    tapped.Put(record);
    EXPECT_EQ(*Receive(*tapped.receiver), message);
  }
  EXPECT_EQ(first.substr(0, 8), second.substr(0, 8)) << "the length";
  EXPECT_NE(first.substr(8), second.substr(8));
}

TEST(TcpLinkTest, AMessageThatIsSentAgainLeftOutOrReflectedIsNoticed) {
  Tapped again, gap, reflected;
  const std::string record = again.Record("once");
  again.Put(record);
  again.Put(record);
  EXPECT_EQ(*Receive(*again.receiver), "once");
  EXPECT_EQ(Receive(*again.receiver).status().code(), absl::StatusCode::kDataLoss);

  gap.Record("lost");
  gap.Put(gap.Record("next"));
  EXPECT_EQ(Receive(*gap.receiver).status().code(), absl::StatusCode::kDataLoss);

  // To its own sender: the directions have keys of their own.
  const std::string own = reflected.Record("mine");
  ASSERT_EQ(::send(reflected.from_sender.get(), own.data(), own.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(own.size()));
  EXPECT_EQ(Receive(*reflected.sender).status().code(), absl::StatusCode::kDataLoss);
}

TEST(TcpLinkTest, AnImpossibleLengthFailsBeforeItsBytesCome) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{5001}, UINT64_MAX}) {
    Tapped tapped;
    tapped.Put(std::string(reinterpret_cast<const char*>(&length), sizeof length));
    EXPECT_EQ(Receive(*tapped.receiver).status().code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(TcpLinkTest, AFullLinkSaysSoAndGoesOnWhenTheOtherEndReads) {
  Pair pair;
  const std::string message(kLimits.message_bytes_max, 'm');
  size_t sent = 0;
  absl::Status status;
  while ((status = Send(*pair.first, message)).ok()) ++sent;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(sent, kLimits.ring_bytes / kLongestRecord);
  // A sender that sleeps hears when there is room, and sends by itself then.
  for (size_t received = 0; received < sent; ++received) {
    while (true) {
      const auto next = *pair.second->Receive();
      if (next.has_value()) break;
      pollfd waits[] = {{.fd = pair.first->descriptor(), .events = POLLIN, .revents = 0},
                        {.fd = pair.second->descriptor(), .events = POLLIN, .revents = 0}};
      if (pair.first->PrepareSleep() && pair.second->PrepareSleep()) {
        ASSERT_GE(::poll(waits, 2, 20000), 1);
      }
      pair.first->EndSleep();
      pair.second->EndSleep();
    }
  }
  EXPECT_TRUE(Send(*pair.first, "more").ok());
  EXPECT_EQ(*Receive(*pair.second), "more");
}

TEST(TcpLinkTest, WhatWasSentBeforeTheEndArrivesAndThenTheEnd) {
  Pair pair;
  ASSERT_TRUE(Send(*pair.first, "last words").ok());
  pair.first.reset();
  EXPECT_EQ(*Receive(*pair.second), "last words");
  EXPECT_EQ(Receive(*pair.second).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.second->CheckPeer().code(), absl::StatusCode::kUnavailable);
}

TEST(TcpLinkTest, RandomMessagesOverRandomCutsArriveInOrder) {
  const uint64_t seed = 31;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto random = NewSeededRandom(seed);
  Tapped tapped;
  std::string stream;
  std::vector<std::string> messages;
  for (int i = 0; i < 300; ++i) {
    messages.emplace_back(1 + random->Below(300), static_cast<char>(random->Next()));
    stream += tapped.Record(messages.back());
  }
  size_t put = 0, received = 0;
  while (received < messages.size()) {
    if (put < stream.size()) {
      const size_t cut = std::min<size_t>(1 + random->Below(900), stream.size() - put);
      tapped.Put(stream.substr(put, cut));
      put += cut;
    }
    while (true) {
      const auto next = *tapped.receiver->Receive();
      if (!next.has_value()) break;
      ASSERT_EQ(std::string(reinterpret_cast<const char*>(next->data()), next->size()),
                messages[received++]);
    }
  }
}

TEST(TcpLinkTest, KeysOfAnotherLengthAreRefused) {
  EXPECT_EQ(
      TcpLink::Create(ConnectedSockets().first, {.send = "short", .receive = "short"}, kLimits)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::transfer
