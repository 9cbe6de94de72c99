// Goal: every call gets one answer or one error in time, many at once and in both directions, and a
// peer that ends, hangs or breaks the format fails its own calls only.
#include "common/transfer/call_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/shared_ring_link.h"

namespace tandem::transfer {
namespace {

constexpr LinkLimits kLimits = {.message_bytes_max = 1 << 16, .ring_bytes = 1 << 20};

class ManualClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// One channel with the events that it handed out. `echo`: answers requests at once.
class End : public CallHandler {
 public:
  explicit End(const Clock& clock, const CallChannelOptions& options = {})
      : channel(*CallChannel::Create(clock, options)) {}

  absl::StatusOr<CallId> Call(CallPeer peer, const std::string& text, absl::Time deadline) {
    const absl::Span<const std::byte> piece = Bytes(text);
    return channel->Call(peer, {&piece, 1}, deadline);
  }
  absl::Status Respond(CallPeer peer, CallId call, const std::string& text) {
    const absl::Span<const std::byte> piece = Bytes(text);
    return channel->Respond(peer, call, {&piece, 1});
  }
  void OnRequest(CallPeer peer, CallId call, absl::Span<const std::byte> bytes) override {
    requests.emplace_back(peer, call);
    if (echo && requests.size() <= echo_max) {
      EXPECT_TRUE(channel->Respond(peer, call, {&bytes, 1}).ok());
    }
  }
  void OnResponse(CallId call, absl::StatusOr<absl::Span<const std::byte>> bytes) override {
    EXPECT_FALSE(answers.contains(call)) << "a second answer";
    answers[call] = bytes.status();
    if (bytes.ok()) {
      texts[call] = std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    }
  }
  void OnPeerLost(CallPeer peer, const absl::Status& why) override { lost[peer] = why; }

  bool echo = true;
  size_t echo_max = SIZE_MAX;  // requests behind these stay open
  std::vector<std::pair<CallPeer, CallId>> requests;
  std::map<CallId, absl::Status> answers;
  std::map<CallId, std::string> texts;
  std::map<CallPeer, absl::Status> lost;
  std::unique_ptr<CallChannel> channel;
};

// A debtor with two creditors in one thread, under a clock of the test's.
class CallChannelTest : public testing::Test {
 protected:
  CallChannelTest() {
    for (int i = 0; i < 2; ++i) {
      auto links = NewInProcessLinks(kLimits, faults_[i]);
      peers_[i] = *debtor_.channel->AddPeer(std::move(links.first));
      back_[i] = *creditors_[i].channel->AddPeer(std::move(links.second));
    }
  }
  void Settle() {
    clock_.now += absl::Milliseconds(2);  // time to look at peers that ended
    for (int i = 0; i < 4; ++i) {
      for (End* end : {&debtor_, &creditors_[0], &creditors_[1]}) end->channel->Progress(*end);
    }
  }
  absl::Time In(absl::Duration time) const { return clock_.now + time; }

  ManualClock clock_;
  InProcessFaults faults_[2];
  End debtor_{clock_};
  End creditors_[2] = {End(clock_), End(clock_)};
  CallPeer peers_[2], back_[2];
};

TEST_F(CallChannelTest, ManyCallsToManyPeersInBothDirectionsGetTheirOwnAnswers) {
  std::map<CallId, std::string> expected;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 8; ++i) {
      const std::string text = std::to_string(round) + "." + std::to_string(i);
      const auto call = debtor_.Call(peers_[i % 2], text, In(absl::Seconds(1)));
      ASSERT_TRUE(call.ok()) << call.status();
      expected[*call] = text;
    }
    const auto reverse = creditors_[1].Call(back_[1], "back", In(absl::Seconds(1)));
    ASSERT_TRUE(reverse.ok());
    Settle();
    EXPECT_EQ(creditors_[1].texts[*reverse], "back");
  }
  EXPECT_EQ(debtor_.texts, expected);
}

TEST_F(CallChannelTest, CallsBeyondTheBoundAreRefusedAndLateOnesCountUntilAnswered) {
  creditors_[0].echo = false;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(debtor_.Call(peers_[0], "q", In(absl::Milliseconds(5))).ok());
  }
  EXPECT_EQ(debtor_.Call(peers_[0], "q", In(absl::Seconds(1))).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(debtor_.Call(peers_[1], "q", In(absl::Seconds(1))).ok());
  Settle();
  EXPECT_EQ(debtor_.answers.size(), 1u);  // the other peer's
  clock_.now += absl::Milliseconds(5);
  Settle();
  ASSERT_EQ(debtor_.answers.size(), 5u);
  EXPECT_EQ(debtor_.answers.begin()->second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(debtor_.Call(peers_[0], "q", In(absl::Seconds(1))).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (const auto& [peer, call] : creditors_[0].requests) {
    EXPECT_TRUE(creditors_[0].Respond(peer, call, "late").ok());
    EXPECT_EQ(creditors_[0].Respond(peer, call, "twice").code(), absl::StatusCode::kNotFound);
  }
  Settle();
  EXPECT_EQ(debtor_.answers.size(), 5u);  // late answers are dropped
  EXPECT_TRUE(debtor_.lost.empty());
  EXPECT_TRUE(debtor_.Call(peers_[0], "q", In(absl::Seconds(1))).ok());
}

TEST_F(CallChannelTest, APeerThatEndsFailsItsCallsOnly) {
  creditors_[0].echo = creditors_[1].echo = false;
  const auto of_lost = debtor_.Call(peers_[0], "q", In(absl::Seconds(1)));
  const auto of_other = debtor_.Call(peers_[1], "q", In(absl::Seconds(1)));
  Settle();
  faults_[0].broken = true;
  Settle();
  EXPECT_EQ(debtor_.answers.at(*of_lost).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(debtor_.lost.size(), 1u);
  EXPECT_EQ(creditors_[0].lost.size(), 1u);
  EXPECT_FALSE(debtor_.answers.contains(*of_other));
  EXPECT_EQ(debtor_.Call(peers_[0], "q", In(absl::Seconds(1))).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(creditors_[1].Respond(back_[1], creditors_[1].requests[0].second, "a").ok());
  Settle();
  EXPECT_EQ(debtor_.texts.at(*of_other), "a");
}

TEST_F(CallChannelTest, AHeldLinkFailsCallsByTheirDeadlines) {
  faults_[0].hold = true;
  const auto call = debtor_.Call(peers_[0], "q", In(absl::Milliseconds(10)));
  Settle();
  EXPECT_TRUE(debtor_.answers.empty());
  clock_.now += absl::Milliseconds(10);
  Settle();
  EXPECT_EQ(debtor_.answers.at(*call).code(), absl::StatusCode::kDeadlineExceeded);
  faults_[0].hold = false;
  Settle();
  EXPECT_EQ(debtor_.answers.size(), 1u);
}

// A peer that speaks to the link itself: what it may get wrong.
TEST_F(CallChannelTest, MessagesThatBreakTheFormatLoseTheirPeer) {
  const uint64_t unknown_kind[] = {7, 3}, not_asked[] = {7, 2}, repeated[] = {7, 1};
  const std::vector<std::vector<std::string>> conversations = {
      {"short"},
      {std::string(reinterpret_cast<const char*>(unknown_kind), sizeof unknown_kind)},
      {std::string(reinterpret_cast<const char*>(not_asked), sizeof not_asked)},
      {std::string(reinterpret_cast<const char*>(repeated), sizeof repeated),
       std::string(reinterpret_cast<const char*>(repeated), sizeof repeated)}};
  debtor_.echo = false;
  for (const auto& conversation : conversations) {
    const InProcessFaults none;
    auto links = NewInProcessLinks(kLimits, none);
    const auto peer = debtor_.channel->AddPeer(std::move(links.first));
    for (const std::string& message : conversation) {
      const absl::Span<const std::byte> piece = Bytes(message);
      ASSERT_TRUE(links.second->Send({&piece, 1}).ok());
    }
    Settle();
    ASSERT_TRUE(debtor_.lost.contains(*peer));
    EXPECT_EQ(debtor_.lost[*peer].code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(debtor_.lost.size(), conversations.size());
}

TEST_F(CallChannelTest, PeersBeyondTheBoundAreRefused) {
  End small(clock_, {.peers_max = 1});
  const InProcessFaults none;
  EXPECT_TRUE(small.channel->AddPeer(NewInProcessLinks(kLimits, none).first).ok());
  EXPECT_EQ(small.channel->AddPeer(NewInProcessLinks(kLimits, none).first).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// A creditor in a process of its own, over rings in shared memory.
class CreditorProcess {
 public:
  // Answers `answers` requests and then none; ends when it is killed or its debtor has gone.
  explicit CreditorProcess(size_t answers) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    OwnedDescriptor own(ends[0]), other(ends[1]);
    const OwnedDescriptor memory = *NewRingMemory(kLimits);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(ends[0]);
      Serve(std::move(other), memory, answers);
    }
    link_ = *SharedRingLink::Create(std::move(own), memory, SharedRingLink::Side::kFirst, kLimits);
  }
  ~CreditorProcess() {
    Kill();
    ::waitpid(child_, nullptr, 0);
  }
  void Kill() const { ::kill(child_, SIGKILL); }
  std::unique_ptr<MessageLink> TakeLink() { return std::move(link_); }

 private:
  [[noreturn]] static void Serve(OwnedDescriptor socket, const OwnedDescriptor& memory,
                                 size_t answers) {
    End end(RealClock());
    end.echo_max = answers;
    auto link =
        SharedRingLink::Create(std::move(socket), memory, SharedRingLink::Side::kSecond, kLimits);
    if (!link.ok() || !end.channel->AddPeer(*std::move(link)).ok()) ::_exit(1);
    while (end.lost.empty()) {
      end.channel->Wait(end, absl::InfiniteFuture());
    }
    ::_exit(0);
  }
  pid_t child_ = -1;
  std::unique_ptr<MessageLink> link_;
};

TEST(CallChannelProcessTest, CallsCrossProcessesAwakeAndAsleep) {
  for (const absl::Duration spin : {absl::ZeroDuration(), absl::Milliseconds(1)}) {
    CreditorProcess creditor(SIZE_MAX);
    End debtor(RealClock(), {.spin = spin});
    const auto peer = debtor.channel->AddPeer(creditor.TakeLink());
    for (int i = 0; i < 1000; ++i) {
      const std::string text(1 + 61 * static_cast<size_t>(i), static_cast<char>(i));
      const auto call = debtor.Call(*peer, text, absl::InfiniteFuture());
      ASSERT_TRUE(call.ok()) << call.status();
      while (!debtor.answers.contains(*call)) {
        debtor.channel->Wait(debtor, absl::InfiniteFuture());
      }
      ASSERT_EQ(debtor.texts[*call], text);
    }
  }
}

TEST(CallChannelProcessTest, AKilledProcessFailsItsCallsAndNoOther) {
  CreditorProcess survivor(SIZE_MAX);
  End debtor(RealClock());
  const auto stays = debtor.channel->AddPeer(survivor.TakeLink());
  for (size_t round = 0; round < 200; ++round) {
    CreditorProcess victim(round % 3);
    const auto dies = debtor.channel->AddPeer(victim.TakeLink());
    std::vector<CallId> calls;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(*debtor.Call(*dies, std::string(30000, 'q'), absl::InfiniteFuture()));
    }
    if (round % 3 != 0) debtor.channel->Wait(debtor, absl::InfiniteFuture());
    victim.Kill();
    const auto call = debtor.Call(*stays, "still here", absl::InfiniteFuture());
    ASSERT_TRUE(call.ok()) << call.status();
    while (!debtor.lost.contains(*dies) || !debtor.answers.contains(*call)) {
      debtor.channel->Wait(debtor, absl::InfiniteFuture());
    }
    for (const CallId id : calls) ASSERT_TRUE(debtor.answers.contains(id));
    ASSERT_EQ(debtor.answers.at(calls.back()).code(), absl::StatusCode::kUnavailable);
    ASSERT_EQ(debtor.texts.at(*call), "still here");
  }
  EXPECT_FALSE(debtor.lost.contains(*stays));
}

}  // namespace
}  // namespace tandem::transfer
